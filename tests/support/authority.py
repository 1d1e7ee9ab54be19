"""A CA for a test."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """Signs certificates for 127.0.0.1, or for another host."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        ca = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._sign(name, self._key, ca)
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, host: str = "127.0.0.1") -> tuple[Path, Path]:
        """Return the paths of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            of: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            of = x509.DNSName(host)
        address = x509.SubjectAlternativeName([of])
        certificate = self._sign(name, key, address)
        paths = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths

    def _sign(
        self, name: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        day = dt.timedelta(days=1)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, self.name)])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(extension, critical=True)
            .sign(self._key, hashes.SHA256())
        )
