"""Settings for the state shared between pickers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from annotated_types import MaxLen
from pydantic import AfterValidator

from laar.declaring import Applies
from laar.settings.section import Section, declared
from laar.sharing.settings import SharingSettings

_SCHEMES = ("redis", "rediss", "unix")


def _store(value: str) -> str:
    parts = urlsplit(value)
    is_socket = parts.scheme == "unix"
    if (
        parts.scheme not in _SCHEMES
        or not (parts.path or (parts.hostname and not is_socket))
        or not (is_socket or re.fullmatch(r"/?[0-9]*", parts.path))
        or not re.fullmatch(r"(db=[0-9]+)?", parts.query)  # the client accepts passwords there too
    ):
        raise ValueError(
            "give redis://HOST:PORT/DATABASE, rediss:// for TLS, or unix:///PATH?db=DATABASE for a "
            "socket; DATABASE is a number and may be omitted"
        )
    _ = parts.port  # raises for an invalid port
    if parts.password or parts.username:
        raise ValueError(
            "settings are shown by /config: give `username` and `password_file` instead"
        )
    return value


@declared(SharingSettings)
class Share(Section):
    """State shared between pickers; a store needs the `share` extra."""

    applies: ClassVar = Applies.AFTER_RESTART

    url: Annotated[str, AfterValidator(_store)] | None = None
    """URL of the pickers' shared Redis or Valkey, such as redis://HOST:6379/0, or rediss:// with
    TLS. None: no sharing."""
    username: Annotated[str, MaxLen(256)] | None = None
    """User name for the store, if it requires one."""
    password_file: Path | None = None
    """File with the store's password."""
    ca_file: Path | None = None
    """PEM file with the CAs that verify a rediss:// store. None: the system's CAs."""
    cert_file: Path | None = None
    """PEM file with this picker's certificate, for a rediss:// store that requires one."""
    key_file: Path | None = None
    """PEM file with the key of the certificate in `cert_file`. None: `cert_file` contains it."""
    secret_file: Path | None = None
    """File with the secret for hashing prompts, the same for all pickers. None: the first picker
    writes one to the store, so anyone who can read the store could check guesses at prompts against
    its hashes."""
    snapshot_file: Path | None = None
    """File in which a picker without a store saves its prefix index, the orders of running
    conversations and what it learned (reported outcomes, c(m)), so that it starts warm. It contains
    hashes and their secret, and only its owner can read it. None: after a restart, laar has only
    the artifact."""
