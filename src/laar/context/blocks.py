"""What a scanner finds in a text: blocks of documents, as spans.

Everything is a pair of offsets into the text as it came. Nothing is rendered anew, so attributes,
gaps and whatever a scanner does not know stay where and what they were.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import NamedTuple

from laar.context.settings import Reason

__all__ = ["MAX_MARKS", "Block", "Item", "Marks", "Refused", "Span", "block_of"]


Marks = tuple[tuple[bytes, re.Pattern[bytes]], ...]
"""Patterns one of which a body with the format must hold, each with its first byte."""


class Refused(Exception):  # noqa: N818 (no error: a decision not to touch the text)
    """Ends a scan; the body is then forwarded as it came."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


Span = tuple[int, int, int, int]
"""An item without its label: `start`, `end`, `text_start`, `text_end`."""


class Item(NamedTuple):
    """One document; a tuple, because a scan makes dozens and has microseconds.

    Args:
        start, end: the span that moves.
        text_start, text_end: the document's own text inside it; what a duplicate note replaces.
        label: how the prompt calls it, if it does.
    """

    start: int
    end: int
    text_start: int
    text_end: int
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Documents that follow each other.

    Args:
        items: in the order received.
        end: where a note about their order goes: after everything that belongs to them.
        labels_stay: the labels are outside the items, so that they number places, not documents.
        quoted: the documents' own text is inside a JSON string.
    """

    items: tuple[Item, ...]
    end: int
    labels_stay: bool = False
    quoted: bool = False


MAX_MARKS = 8
"""Delimiters looked at for each document allowed: bounds a scan of text that is nothing else."""

MAX_SEPARATOR = 16
"""Longest text that may stand between documents; it must be the same in all places."""


def block_of(
    text: str,
    spans: Sequence[Span],
    end: int,
    *,
    names: Sequence[dict[str, str]],
    relabel: bool = False,
    quoted: bool = False,
) -> Block:
    """Checks that a run of items can be rearranged and names them.

    Args:
        text: what they were found in.
        spans: of the documents.
        end: see `Block`.
        names: for each item what it says of itself (attributes, short fields), in order of worth.
        relabel: numbers that count the documents may stay in place while the text moves.
        quoted: see `Block`.

    Raises:
        Refused: something stands between the items, or they number themselves and must keep it.
    """
    gaps = {gap.strip() for gap in {text[a[1] : b[0]] for a, b in pairwise(spans)}}
    if len(gaps) > 1 or any(len(gap) > MAX_SEPARATOR for gap in gaps):
        raise Refused(Reason.GAPS_DIFFER)
    labels: list[str] | None = None
    for name in names[0]:
        values = [own.get(name, "") for own in names]
        first = values[0]
        if first in {"0", "1"} and values == _count(int(first), len(spans)):
            return _counted(spans, end, names, name, relabel=relabel)
        told = len(max(values, key=len)) <= MAX_LABEL and all(name in own for own in names)
        if labels is None and told and len(set(values)) == len(values):
            labels = values
    items = map(Item, *zip(*spans, strict=True), labels or repeat(None))
    return Block(tuple(items), end, quoted=quoted)


def _counted(
    spans: Sequence[Span], end: int, names: Sequence[dict[str, str]], number: str, *, relabel: bool
) -> Block:
    """Items that number themselves: only their texts may move, if they say nothing else of them."""
    others = {tuple((k, v) for k, v in own.items() if k != number) for own in names}
    if not relabel or len(others) > 1:
        raise Refused(Reason.POSITIONAL_LABELS)
    moving = tuple(
        Item(start, stop, start, stop, own[number])
        for (_, _, start, stop), own in zip(spans, names, strict=True)
    )
    return Block(moving, end, labels_stay=True)


MAX_LABEL = 64
"""Longest label that is worth repeating in a note."""


def _count(first: int, n: int) -> list[str]:
    return [str(i) for i in range(first, first + n)]
