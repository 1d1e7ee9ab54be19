"""Read tokens from files that the settings name."""

from __future__ import annotations

import hmac

from laar.datalayer.files import read_file
from laar.errors import SettingError
from laar.faults import Fault
from laar.settings import Settings
from laar.settings.section import value_at

_MIN_CHARS, _MAX_CHARS = 8, 4096
VIEWERS, OUTCOMES = "decisions.viewers_token_file", "accuracy.outcomes_token_file"


def token_in(settings: Settings, setting: str) -> str | None:
    """Read the token for viewers or for reports of outcomes; return None if no file is set.

    Raise `SettingError` if the file can't be read, or has no valid token.
    """
    path = value_at(settings, setting)
    if path is None:
        return None
    try:
        token: str = read_file(path).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as fault:
        why = getattr(fault, "strerror", None) or "it is not ASCII text"
        raise SettingError(
            f"{path} can't be read: {why}", setting=setting, fault=Fault.TOKENS
        ) from None
    if not _MIN_CHARS <= len(token) <= _MAX_CHARS or not token.isprintable() or " " in token:
        raise SettingError(
            f"{path} has no token of {_MIN_CHARS} or more printable characters without spaces",
            setting=setting,
            fault=Fault.TOKENS,
        )
    return token


def is_sent(token: str, authorization: str) -> bool:
    """Return whether a header has the token; the time that this takes reveals nothing."""
    scheme, _, sent = authorization.partition(" ")
    right = hmac.compare_digest(sent.strip().encode(), token.encode())
    return right and scheme.lower() == "bearer"
