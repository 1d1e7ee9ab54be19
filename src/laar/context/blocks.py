"""Blocks of documents found by the scanners, as spans of a text.

All positions are offsets into the text as received. Nothing is rendered again, so attributes, gaps
and anything unknown to a scanner stay unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import NamedTuple

from laar.context.settings import Reason


class SkippedText(Exception):  # noqa: N818 (not an error: a decision to leave the text unchanged)
    """Raised to end a scan; the text is then forwarded unchanged."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


Span = tuple[int, int, int, int]
"""An item without its label: `start`, `end`, `text_start`, `text_end`."""


class Document(NamedTuple):
    """One document; a tuple, because a scan creates dozens in microseconds.

    Args:
        start, end: span that moves.
        text_start, text_end: span of the document's own text, which a duplicate note replaces.
        label: name in the prompt, if any.
    """

    start: int
    end: int
    text_start: int
    text_end: int
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A run of documents in a text.

    Args:
        items: documents in received order.
        end: position for a note about their order, after everything that belongs to them.
        labels_stay: the labels are outside the items, so they number positions, not documents. The
            items are then fixed, unless ids can replace the numbers (`laar.context.citations`).
        quoted: the documents' own text is inside a JSON string.
        shape: the format in which the block was found.
        fixed: the items must not move, since their labels or other data number them.
        numbers: start and end of each number in the labels, and the index of the item that it
            numbers; empty if ids may not replace the numbers.
    """

    items: tuple[Document, ...]
    end: int
    labels_stay: bool = False
    quoted: bool = False
    shape: str = ""
    fixed: bool = False
    numbers: tuple[tuple[int, int, int], ...] = ()

    def part(self, first: int, stop: int) -> Block:
        """Return the block of the documents from `first` up to `stop`."""
        items, end = self.items[first:stop], self.end
        numbers = tuple([(a, b, at - first) for a, b, at in self.numbers if first <= at < stop])
        if stop < len(self.items):
            end = max(items[-1].end, *(b for _, b, _ in numbers), 0)
        return replace(self, items=items, end=end, numbers=numbers)

    def shifted(self, by: int) -> Block:
        """Return the block shifted by `by` characters."""
        items = tuple(
            Document(a + by, b + by, c + by, d + by, label) for a, b, c, d, label in self.items
        )
        return replace(self, items=items, end=self.end + by)


DOCUMENT_BLOCKS = ("document", "search_result")
"""Types of blocks that each hold one document."""

MIN_DOCS = 3
"""Minimum number of documents in a list that is changed; shorter lists gain little."""

MAX_DOCS = 256
"""Maximum number of documents in a list to reorder; bounds the search for an order."""

MAX_MARKS = 8
"""Maximum number of tags examined per allowed document; bounds scans of hostile texts."""

MAX_SEPARATOR = 16
"""Maximum length of the text between two documents, which must be the same between all of them."""


def block_of(
    text: str,
    spans: Sequence[Span],
    end: int,
    *,
    names: Sequence[dict[str, str]],
    quoted: bool = False,
    shape: str = "",
) -> Block:
    """Return a block for a run of items, with their labels.

    Raise `SkippedText` if the texts between the items differ, or one is too long.

    Args:
        text: the text in which they were found.
        spans: spans of the documents.
        end: see `Block`.
        names: each item's candidate names (attributes, short fields), best first.
        quoted: see `Block`.
        shape: see `Block`.
    """
    gaps = {gap.strip() for gap in {text[a[1] : b[0]] for a, b in pairwise(spans)}}
    if len(gaps) > 1 or any(len(gap) > MAX_SEPARATOR for gap in gaps):
        raise SkippedText(Reason.GAPS_DIFFER)
    labels: list[str] | None = None
    for name in names[0]:
        if not all(name in own for own in names):
            continue
        values = [own[name] for own in names]
        if count_up(values):
            if name.lower() not in _PLACES:  # the name numbers the parts of one text, such as pages
                whole = tuple(Document(*span) for span in spans)
                return Block(whole, end, quoted=quoted, shape=shape, fixed=True)
            block = _counted(text, spans, end, name, values)
            return replace(block, quoted=quoted, shape=shape)
        fits = len(max(values, key=len)) <= MAX_LABEL
        if labels is None and fits and len(set(values)) == len(values):
            labels = values
    items = map(Document, *zip(*spans, strict=True), labels or repeat(None))
    return Block(tuple(items), end, quoted=quoted, shape=shape)


_PLACES = frozenset(
    ("index", "id", "idx", "i", "n", "no", "nr", "num", "number", "rank", "position", "pos", "ref",
     "key", "doc", "document", "source", "label", "name", "title", "doc_id", "source_id",
     "document_id", "doc_index", "document_index", "citation_id", "ref_id")
)  # fmt: skip
"""Names used to number documents."""


def _counted(
    text: str, spans: Sequence[Span], end: int, name: str, numbers: Sequence[str]
) -> Block:
    """Return a block of items that begin with their number; only their texts move."""
    items: list[Document] = []
    counted = re.compile(  # independent of the number, so that `re` caches it
        rf"[^\d\n]{{0,{MAX_HEAD}}}?{re.escape(name)}[\"']?\s{{0,8}}[=:]\s{{0,8}}[\"']?(\d+)[\"']?"
    )
    for (start, stop, first, last), number in zip(spans, numbers, strict=True):
        match = counted.match(text, start, stop)
        behind = match.end() if match and match[1] == number and match.end() <= first else start
        items.append(Document(behind, stop, first, last, number))
    return Block(tuple(items), end, labels_stay=True, fixed=True)


MAX_HEAD = 40
"""Maximum length of the text (a tag or field name) before an item's number."""

MAX_LABEL = 64
"""Maximum length of a label that a note repeats."""


def count_up(names: Sequence[str]) -> bool:
    """Return whether names are 0, 1, 2 or 1, 2, 3 and so on."""
    if names[0] not in {"0", "1"}:
        return False
    first = int(names[0])
    return list(names) == [str(i) for i in range(first, first + len(names))]
