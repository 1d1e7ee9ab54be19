"""Checks of values that anybody may have written: snapshots, and messages of other pickers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

MAX_TEXT_CHARS = 1024
LARGEST = 1e12
_MAX_INVALID = 1000  # items of a list; each takes 30 µs

Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0, lt=LARGEST)]


def valid(entries: object, kind: Any) -> Iterator[Any]:
    """Yield the items of a decoded JSON list that are of this kind, within its declared bounds.

    Stop after too many that are not: their number is the sender's choice, and the loop is blocked.
    """
    invalid = 0
    for entry in entries if isinstance(entries, list) else ():
        try:
            yield msgspec.convert(entry, kind)
        except (msgspec.ValidationError, RecursionError):
            invalid += 1
        if invalid >= _MAX_INVALID:
            break
