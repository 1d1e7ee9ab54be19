"""A CA for a test."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def write_pair(path: Path, certificate: x509.Certificate, key: Key) -> tuple[Path, Path]:
    """Write a certificate, and its key beside it; return both paths."""
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(certificate.public_bytes(pem))
    paths = path, path.with_suffix(".key")
    paths[1].write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    return paths


def signed(
    name: str,
    key: Key,
    issuer: str,
    signer: Key,
    begins: dt.datetime,
    ends: dt.datetime,
    *extensions: tuple[x509.ExtensionType, bool],
) -> x509.Certificate:
    """Return a certificate; each extension is critical or not."""
    subject, by = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, of)]) for of in (name, issuer)
    )
    made = x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(begins).not_valid_after(ends)
    for extension, is_critical in extensions:
        made = made.add_extension(extension, critical=is_critical)
    return made.sign(signer, hashes.SHA256())


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
        certificate = self._sign(name, key, x509.SubjectAlternativeName([of]))
        return write_pair(self.directory / f"{name}.crt", certificate, key)

    def _sign(
        self, name: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
        return signed(name, key, self.name, self._key, now - day, now + day, (extension, True))
