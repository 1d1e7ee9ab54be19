"""Rewrite a text with its documents in a different order: spans move, nothing is re-rendered.

    before | item gap item gap item | rest of the block | order note | after

Gaps belong to positions, so separators stay in place. A change that does not fit the text, or would
replace a document without an earlier copy, is refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from laar.context.blocks import Block, SkippedText
from laar.context.notes import duplicate_note, number_note, order_note
from laar.context.settings import Reason

MAX_SEARCHED = 32 << 20
"""Maximum number of characters searched for earlier copies of a text's repeated documents (7 ms);
beyond it, the text is sent as received. Searching periodic text takes ten times as long."""

_WORTH_NOTES = 8
"""Minimum length of documents to reorder, as a multiple of their note's length: it is possible that
no other request shares their order."""


@dataclass(frozen=True, slots=True)
class BlockChange:
    """The change to one block.

    Args:
        order: received positions in sending order.
        repeated: received positions whose text is replaced by a note.
        ids: what replaces the document numbers, by received position; empty to keep the numbers.
    """

    block: Block
    order: tuple[int, ...]
    repeated: frozenset[int] = frozenset()
    ids: tuple[str, ...] = ()

    @property
    def moved(self) -> bool:
        """Return whether the order or the documents' numbers differ from those received."""
        return bool(self.ids) or self.order != tuple(range(len(self.order)))


def as_received(block: Block) -> BlockChange:
    """Return a change that keeps the block as received."""
    return BlockChange(block, tuple(range(len(block.items))))


def is_too_small(block: Block, size: int) -> bool:
    """Return whether documents of `size` bytes are too short to be worth the note that is added."""
    note_bytes = 72 + 5 * len(block.items)  # approximately
    return size < _WORTH_NOTES * note_bytes


def is_lossless(text: str, changes: Sequence[BlockChange]) -> bool:
    """Return whether the spans are in text order, and each order has each document exactly once."""
    places = [0]
    for change in changes:
        for start, end, text_start, text_end, _ in change.block.items:
            places += start, text_start, text_end, end
        places.append(change.block.end)
    places.append(len(text))
    return places == sorted(places) and all(
        sorted(change.order) == list(range(len(change.block.items))) for change in changes
    )


def rewrite(
    text: str, changes: Sequence[BlockChange], earlier: Sequence[str] = ()
) -> tuple[str, str]:
    """Apply changes to a text, given the texts of the outgoing body before it.

    Raise `SkippedText` if text could be lost: a change does not fit, or no earlier copy of a
    repeated document is found within `MAX_SEARCHED` characters.

    Returns:
        The text without and with order notes.
    """
    if not is_lossless(text, changes):
        raise SkippedText(Reason.CHECK_FAILED)
    parts: list[str] = []
    notes: list[tuple[int, str]] = []  # each note with the number of parts before it
    done = searched = 0
    for change in changes:
        items = change.block.items
        for place, at in enumerate(change.order):
            parts.append(_gap(text, change, done, items[place].start))
            if at in change.repeated:
                before = ["".join(parts), *earlier]
                searched += sum(map(len, before))
                gone = text[items[at].text_start : items[at].text_end]
                if searched > MAX_SEARCHED or not any(gone in said for said in before):
                    raise SkippedText(Reason.CHECK_FAILED)
            parts.append(_content(text, change, at))
            done = items[place].end
        if change.moved:
            parts.append(_gap(text, change, done, change.block.end))
            done = change.block.end
            notes.append((len(parts), _note(text, change)))
    parts.append(text[done:])
    bare = "".join(parts)
    for at, note in reversed(notes):
        parts.insert(at, note)
    return bare, "".join(parts)


def _gap(text: str, change: BlockChange, start: int, end: int) -> str:
    """Return the text between two documents, with ids instead of numbers."""
    if not change.ids:
        return text[start:end]
    parts: list[str] = []
    numbers = change.block.numbers
    begin, stop = bisect_left(numbers, (start,)), bisect_left(numbers, (end,))
    for first, behind, place in numbers[begin:stop]:
        parts += text[start:first], change.ids[change.order[place]]
        start = behind
    return "".join(parts) + text[start:end]


def _content(text: str, change: BlockChange, at: int) -> str:
    item = change.block.items[at]
    if at not in change.repeated:
        return text[item.start : item.end]
    gone = text[item.text_start : item.text_end]
    if change.block.quoted:
        gone = orjson.loads(f'"{gone}"')
    note = duplicate_note(gone)
    return text[item.start : item.text_start] + note + text[item.text_end : item.end]


def _note(text: str, change: BlockChange) -> str:
    """Return the note about the received order, as written after the block."""
    items, end = change.block.items, change.block.end
    place = {at: i for i, at in enumerate(change.order)}
    order = [place[at] for at in range(len(items))]
    labels = [item.label for item in items]  # as sent
    if change.ids:
        note = number_note(labels, change.ids)
    else:
        note = order_note([labels[at] for at in change.order], order)
    if change.block.shape != "parts":
        return f"\n{note}" + ("" if text[end : end + 1] in "\r\n" else "\n")
    own = orjson.loads(text[items[0].start : items[0].end])  # the note must be a block of its own
    kind = "input_text" if own.get("type") == "input_text" else "text"
    return "," + orjson.dumps({"type": kind, "text": note}).decode()
