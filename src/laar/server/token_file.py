"""Read tokens from files that the settings name."""

from __future__ import annotations

import hmac
from pathlib import Path

from laar.datalayer.files import read_file
from laar.errors import SettingError
from laar.settings import Settings

_MIN_CHARS, _MAX_CHARS = 8, 4096


def viewers_token(settings: Settings) -> str | None:
    """Read the viewers' token; return None if no file is set.

    Raises:
        SettingError: the file can't be read, or has no valid token.
    """
    path = settings.decisions.viewers_token_file
    return None if path is None else _token(path, "decisions.viewers_token_file")


def outcomes_token(settings: Settings) -> str | None:
    """Read the token for reports of outcomes; return None if no file is set.

    Raises:
        SettingError: the file can't be read, or has no valid token.
    """
    path = settings.accuracy.outcomes_token_file
    return None if path is None else _token(path, "accuracy.outcomes_token_file")


def _token(path: Path, setting: str) -> str:
    try:
        token = read_file(path).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as fault:
        why = getattr(fault, "strerror", None) or "it is not ASCII text"
        raise SettingError(
            f"{path} can't be read: {why}; create it: openssl rand -hex 24 > {path}",
            setting=setting,
        ) from None
    if not _MIN_CHARS <= len(token) <= _MAX_CHARS or not token.isprintable() or " " in token:
        raise SettingError(
            f"{path} has no token of {_MIN_CHARS} or more printable characters without spaces; "
            f"write one to it: openssl rand -hex 24 > {path}",
            setting=setting,
        )
    return token


def is_sent(token: str, authorization: str) -> bool:
    """Return whether a header has the token; the time that this takes reveals nothing."""
    scheme, _, sent = authorization.partition(" ")
    right = hmac.compare_digest(sent.strip().encode(), token.encode())
    return right and scheme.lower() == "bearer"
