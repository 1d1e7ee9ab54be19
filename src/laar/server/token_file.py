"""Read tokens from files that the settings name."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path

from laar.accuracy.reporters import MAX_REPORTERS
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


def _token(path: Path, setting: str) -> str:
    token = _read(path, setting)
    if not _MIN_CHARS <= len(token) <= _MAX_CHARS or not token.isprintable():
        raise SettingError(
            f"{path} has no token of {_MIN_CHARS} or more printable characters; write one to it: "
            f"openssl rand -hex 24 > {path}",
            setting=setting,
        )
    return token


def reporter_of(names: Mapping[str, str], authorization: str) -> str | None:
    """Return the name of a token's reporter, possibly empty; None if the token is unknown."""
    scheme, _, sent = authorization.partition(" ")
    given, found = sent.strip().encode(), None
    for token, name in names.items():  # always compares all, so that timing reveals nothing
        if hmac.compare_digest(given, token.encode()):
            found = name
    return found if scheme.lower() == "bearer" else None


def reporter_tokens(settings: Settings) -> dict[str, str] | None:
    """Read the reporters' tokens: a single one, or one line per reporter with name and token.

    Return the name of each token's reporter, empty for a single token; None if no file is set.

    Raises:
        SettingError: the file can't be read, or a line is malformed.
    """
    path, setting = settings.accuracy.outcomes_token_file, "accuracy.outcomes_token_file"
    if path is None:
        return None
    lines = _read(path, setting).splitlines()
    if len(lines) == 1 and len(lines[0].split()) == 1:
        return {_token(path, setting): ""}
    names: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        parts = line.split()
        if not parts or line.lstrip().startswith("#"):
            continue
        if len(parts) != 2 or len(parts[1]) < _MIN_CHARS or parts[1] in names:
            raise SettingError(
                f"{path}:{number}: give a reporter's name and its own token of {_MIN_CHARS} or "
                "more characters, separated by a space",
                setting=setting,
            )
        names[parts[1]] = parts[0]
    if not 0 < len(names) <= MAX_REPORTERS:
        raise SettingError(
            f"{path} has {len(names)} reporters; 1 to {MAX_REPORTERS} are allowed", setting=setting
        )
    return names


def _read(path: Path, setting: str) -> str:
    try:
        return read_file(path).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as fault:
        why = getattr(fault, "strerror", None) or "it is not ASCII text"
        raise SettingError(
            f"{path} can't be read: {why}; create it: openssl rand -hex 24 > {path}",
            setting=setting,
        ) from None
