"""Retry state without server state: the list of tried models travels with the request.

The picker's answer lists the models tried so far, and the client sends this list back (LAAR,
section 5.4).

The list comes from the client and is not trusted. It is truncated, names that no endpoint serves
are dropped, and both are counted; it never makes a request fail.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

WRONG_ANSWER_S = 240.0
"""What a wrong answer costs a client that does not ask again, by default: the least price that gave
as many right answers on recorded ones, to 1 and 8 users, as 600 s, which took a quarter longer."""

MAX_TRIED = 64
"""Maximum number of list entries read: several rounds over any fleet's models."""

MAX_TRIED_CHARS = 8192
"""Maximum number of characters read of the header: 64 names of 128."""


def parse_tried(header: str | None, known: Collection[str]) -> tuple[tuple[str, ...], int]:
    """Parse an ``x-laar-tried-models`` header.

    Return the models tried, first to last, including repeats, and how many entries were dropped.
    """
    if not header:
        return (), 0
    cut = len(header) > MAX_TRIED_CHARS
    names = [name.strip() for name in header[:MAX_TRIED_CHARS].split(",", MAX_TRIED)]
    cut = cut or len(names) > MAX_TRIED
    models = tuple(name for name in names[:MAX_TRIED] if name in known)
    return models, min(len(names), MAX_TRIED) - len(models) + cut


def with_model(tried: Sequence[str], model: str) -> tuple[str, ...]:
    """Return the models tried, with `model` as the latest; at most `MAX_TRIED`."""
    return (*tried[-(MAX_TRIED - 1) :], model)
