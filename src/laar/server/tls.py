"""TLS on the ext_proc port: self-signed, or certificate files that may be replaced while serving.

Gateways that follow the endpoint-picker contract use TLS and accept any certificate by default, so
one can be generated at startup. Files are reread once a second in a thread, so a renewed Secret
needs no restart; it applies to new handshakes, and open connections are kept. Unusable files are
ignored, as is a certificate that has expired or is not valid yet while a valid one is in use. If
there is no valid certificate, an invalid one is served and reported: gateways that don't verify it
continue as before; those that do would continue without the picker either way.

With `client_ca_file`, callers must present a certificate issued by that CA (mTLS).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from laar.datalayer.files import read_file
from laar.errors import SettingError
from laar.faults import Fault
from laar.telemetry.problems import Problems

if TYPE_CHECKING:
    from laar.settings.listening import Tls

_LOG = logging.getLogger(__name__)

RELOAD_S = 1.0
SELF_SIGNED_DAYS = 3650
_unusable = partial(SettingError, fault=Fault.TLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The server's certificate and key, and the CA for client certificates, in PEM."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None
    begins_at: datetime
    expires_at: datetime

    def context(self) -> ssl.SSLContext:
        """Return the identity as a context for Python's `ssl`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # some builds leave it to the system
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["h2"])
        # OpenSSL only loads certificates from files, so use one in memory.
        pair = os.memfd_create("laar-tls")
        try:
            os.write(pair, self.key + b"\n" + self.certificate)
            context.load_cert_chain(f"/proc/self/fd/{pair}")
        finally:
            os.close(pair)
        if self.client_ca is not None:
            # PEM comments may contain any bytes, but `cadata` must be ASCII.
            context.load_verify_locations(cadata=self.client_ca.decode("ascii", "ignore"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context


Use = Callable[[Identity], Awaitable[None]]


class ServerTls:
    """The certificate in use.

    Raise `SettingError` if a file can't be used.

    Args:
        settings: the certificate's files, or self-signed.
        problems: receives problems with files, and an expired certificate.
    """

    def __init__(self, settings: Tls, problems: Problems) -> None:
        self._settings = settings
        self._problems = problems
        self.shown = _load(settings, None)
        """The identity in use; a new object after each change."""

    async def run(self, use: Use) -> None:
        """Watch the files until cancelled; `use` each new identity."""
        while True:
            try:
                found = await asyncio.to_thread(_load, self._settings, self.shown)
            except SettingError as error:
                problem = f"{error.what}; the previous certificate stays in use"
                self._problems.report(Fault.TLS, problem)
            else:
                await self._take(found, datetime.now(UTC), use)
            await asyncio.sleep(RELOAD_S)

    async def _take(self, found: Identity, now: datetime, use: Use) -> None:
        invalid = _invalid(self._settings, found, now)
        self._problems.report(Fault.TLS, invalid)
        if found != self.shown and (
            invalid is None or _invalid(self._settings, self.shown, now) is not None
        ):
            await use(found)
            self.shown = found  # only now: after an error, it is tried again
            _LOG.info("a new certificate is in use; it is valid until %s", found.expires_at)


def check_tls(settings: Tls) -> None:
    """Check the certificate before serving.

    Raise `SettingError` if a file can't be used, or the certificate is not valid now.
    """
    if (why := _invalid(settings, _load(settings, None), datetime.now(UTC))) is not None:
        raise _unusable(why.partition(": ")[2], setting="listen.tls.cert_file")


def _invalid(tls: Tls, found: Identity, now: datetime) -> str | None:
    """Return why a certificate is not valid now; None if it is."""
    if found.begins_at <= now < found.expires_at:
        return None
    why = f"expired on {found.expires_at:%Y-%m-%d %H:%M} UTC"
    if now < found.begins_at:  # clocks may differ
        why = f"is not valid before {found.begins_at:%Y-%m-%d %H:%M} UTC"
    return f"listen.tls.cert_file: {tls.cert_file} {why}: clients that verify it will reject it"


def _load(tls: Tls, known: Identity | None) -> Identity:
    """Read the files; return `known` if they are unchanged."""
    client_ca = _bytes(tls, "client_ca_file")
    if not tls.self_signed:
        certificate, key = _bytes(tls, "cert_file") or b"", _bytes(tls, "key_file") or b""
    elif known:
        certificate, key = known.certificate, known.key
    else:
        certificate, key = _self_signed()
    if known and (certificate, key, client_ca) == (known.certificate, known.key, known.client_ca):
        return known
    return _checked(tls, certificate, key, client_ca)


def _bytes(tls: Tls, name: str) -> bytes | None:
    path = getattr(tls, name)
    if path is None:
        return None
    try:
        return read_file(path)
    except OSError as error:
        raise _unusable(
            f"can't read {path}: {error.strerror}", setting=f"listen.tls.{name}"
        ) from None


def _checked(tls: Tls, certificate: bytes, key: bytes, client_ca: bytes | None) -> Identity:
    """Return the identity; reject files with which loading or handshakes would fail."""
    name = "cert_file"
    try:
        leaf = x509.load_pem_x509_certificates(certificate)[0]
        public = leaf.public_key()
        name = "key_file"
        private = serialization.load_pem_private_key(key, password=None)
        if client_ca is not None:
            name = "client_ca_file"
            x509.load_pem_x509_certificates(client_ca)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _unusable(
            f"{getattr(tls, name)} is not a usable PEM file ({error})",
            setting=f"listen.tls.{name}",
        ) from None
    if private.public_key() != public:
        raise _unusable(f"{tls.key_file} is not the key of {tls.cert_file}", setting="listen.tls")
    found = Identity(
        certificate=certificate,
        key=key,
        client_ca=client_ca,
        begins_at=leaf.not_valid_before_utc,
        expires_at=leaf.not_valid_after_utc,
    )
    try:
        found.context()
    except (OSError, ValueError) as error:
        files = [str(path) for path in (tls.cert_file, tls.key_file, tls.client_ca_file) if path]
        raise _unusable(
            f"OpenSSL rejects {', '.join(files)} ({error})", setting="listen.tls"
        ) from None
    return found


def _self_signed() -> tuple[bytes, bytes]:
    """Return a newly generated certificate and its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "laar")])
    host = x509.DNSName(socket.gethostname())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks may differ
        .not_valid_after(now + timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
