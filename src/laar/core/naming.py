"""Recognize different names of the same model."""

from __future__ import annotations

from collections.abc import Iterable

_SEPARATORS = "-.:@_"


def goes_by(name: str, known: Iterable[str]) -> bool:
    """Return whether an answer's model name is one of the known ones, or a variant of it.

    Engines may answer with the path the model was loaded from, or append a date or version.
    """
    own = _last(name)
    for other in map(_last, known):
        short, long = sorted((own, other), key=len)
        if long.startswith(short) and (short == long or long[len(short)] in _SEPARATORS):
            return bool(short)
    return False


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].casefold()
