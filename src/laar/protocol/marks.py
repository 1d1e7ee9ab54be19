"""Marks of a body: what an engine might refuse a request for, whatever that is.

No mark is on a list: they are the names of the body's members, nested ones by path, with short
values and the magnitudes of numbers. Of long lists, the first and the last items are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MOST = 40
_MAX_LOOKS = 120  # members and items looked at: 50 microseconds' work
_FIRST, _LAST = 2, 4
_VALUE_CHARS = 32


class Marks(tuple[Mapping[str, Any]]):
    """The marks of a body, read when they are first iterated over: seldom are any needed.

    Those with a space have a value that may be any: a name, or a magnitude.
    """

    read: tuple[str, ...] = ()
    """The marks, if they have been read."""

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        if not self.read:
            self.read = tuple(_marks(self[0]))
        return iter(self.read)


def _marks(document: Mapping[str, Any]) -> dict[str, None]:
    found: dict[str, None] = {}
    # Both lists grow while they are read, so members at the top come first.
    paths, values = list(document), list(document.values())
    for path, value in zip(paths, values):  # noqa: B905
        mark = path
        if value is True:
            mark = f"{path}=true"
        elif isinstance(value, str):
            if 0 < len(value) <= _VALUE_CHARS and " " not in value:
                found[path] = None
                mark = f"{path} {value}"
        elif isinstance(value, int | float):
            if value and abs(value) < 1e18:
                found[path] = None
                mark = f"{path} {'-' * (value < 0)}{int(value).bit_length()}"
        elif isinstance(value, dict | list) and value:
            mark = f"{path}{{}}" if isinstance(value, dict) else f"{path}[]"
            if len(paths) < _MAX_LOOKS:
                if isinstance(value, dict):
                    paths += [f"{mark}.{name}" for name in value]
                    values += value.values()
                else:
                    seen = [*value[:_FIRST], *value[_FIRST:][-_LAST:]]
                    paths += [mark] * len(seen)
                    values += seen
        found[mark] = None
        if len(found) >= _MOST:
            break
    return found
