"""Tokens that settings name a file for."""

from __future__ import annotations

from pathlib import Path

from laar.errors import SettingError

__all__ = ["read_token_file"]

_MIN_CHARS, _MAX_CHARS = 8, 4096


def read_token_file(path: Path | None, setting: str) -> str | None:
    """Reads a token; None where no file is set.

    Args:
        path: of the file.
        setting: that names it, for the error.

    Raises:
        SettingError: the file can't be read, or holds no token.
    """
    if path is None:
        return None
    try:
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as fault:
        why = getattr(fault, "strerror", None) or "it is not ASCII text"
        raise SettingError(
            f"{path} can't be read: {why}; create it: openssl rand -hex 24 > {path}",
            setting=setting,
        ) from None
    if not _MIN_CHARS <= len(token) <= _MAX_CHARS or not token.isprintable():
        raise SettingError(
            f"{path} holds no token of {_MIN_CHARS} or more printable characters; write one there, "
            "such as `openssl rand -hex 24` makes",
            setting=setting,
        )
    return token
