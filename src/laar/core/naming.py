"""Names that mean the same model."""

from __future__ import annotations

from collections.abc import Iterable

_SEPARATORS = "-.:@_"


def goes_by(name: str, known: Iterable[str]) -> bool:
    """Return whether an answer's name for its model is one of the known ones, or a form of it.

    Engines answer with the path they loaded it from, or with a date or a version behind it.
    """
    own = _last(name)
    for other in map(_last, known):
        short, long = sorted((own, other), key=len)
        if long.startswith(short) and (short == long or long[len(short)] in _SEPARATORS):
            return bool(short)
    return False


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].casefold()
