"""Rewrite a text with its documents in a different order: spans move, nothing is re-rendered.

    before | item gap item gap item | rest of the block | order note | after

Gaps belong to positions, so separators stay in place. `verified` is the last check before a text is
sent: it looks for the documents in the resulting text, not in the plan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from laar.context.blocks import Block
from laar.context.notes import duplicate_note, number_note, order_note
from laar.context.settings import ContextSettings

MAX_SEARCHED = 32 << 20
"""Maximum number of characters searched for earlier copies of a text's repeated documents (7 ms);
beyond it, the text is sent as received. Searching periodic text takes ten times as long."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change to one block.

    Args:
        block: the documents.
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


def as_received(block: Block) -> Change:
    """Return a change that keeps the block as received."""
    return Change(block, tuple(range(len(block.items))))


def note_bytes(block: Block, settings: ContextSettings) -> int:
    """Return the approximate length of the note that moving a block adds; 0 if none is added."""
    return 66 + 5 * len(block.items) if settings.annotate else 0


def is_too_small(block: Block, size: int, settings: ContextSettings) -> bool:
    """Return whether a block of `size` bytes would save too little even if it were all cached."""
    return max(0, size - note_bytes(block, settings)) < settings.min_saving_bytes


def rewrite(text: str, changes: Sequence[Change]) -> tuple[str, str]:
    """Apply changes to a text; they must be in text order and not overlap.

    Returns:
        The text without and with order notes.
    """
    parts: list[str] = []
    notes: list[tuple[int, str]] = []  # each note with the number of parts before it
    done = 0
    for change in changes:
        items = change.block.items
        for place, at in enumerate(change.order):
            parts += _gap(text, change, done, items[place].start), _content(text, change, at)
            done = items[place].end
        if change.moved:
            end = change.block.end
            parts.append(_gap(text, change, done, end))
            note = _note(change)
            if change.block.shape == "parts":  # the note must be a block of its own
                own = orjson.loads(text[items[0].start : items[0].end])
                kind = "input_text" if own.get("type") == "input_text" else "text"
                fields = {"type": kind} if "type" in own else dict.fromkeys(own, "")
                note = "," + orjson.dumps(fields | {"text": note}).decode()
            else:
                note = f"\n{note}" + ("" if text[end : end + 1] in "\r\n" else "\n")
            notes.append((len(parts), note))
            done = end
    parts.append(text[done:])
    bare = "".join(parts)
    for at, note in reversed(notes):
        parts.insert(at, note)
    return bare, "".join(parts)


def verified(text: str, changes: Sequence[Change], made: str, earlier: Sequence[str]) -> bool:
    """Return whether `made` contains each document of `text`, or a note and an earlier copy.

    Every character is compared at its new position. Return False if more than `MAX_SEARCHED`
    characters would be searched for earlier copies.

    Args:
        text: the text as received.
        changes: the planned changes.
        made: the result, without order notes.
        earlier: texts of the outgoing body before this one.
    """
    done = at = searched = 0
    said_chars = sum(map(len, earlier))
    for change in changes:
        items = change.block.items
        if sorted(change.order) != list(range(len(items))):
            return False
        for place, received in enumerate(change.order):
            item = items[received]
            gap = _gap(text, change, done, items[place].start)
            own = _content(text, change, received)
            if not made.startswith(gap, at) or not made.startswith(own, at + len(gap)):
                return False
            at += len(gap)
            if received in change.repeated:
                gone = text[item.text_start : item.text_end]
                searched += at + said_chars
                if searched > MAX_SEARCHED or not (
                    made.find(gone, 0, at) >= 0 or any(gone in said for said in earlier)
                ):
                    return False
            at += len(own)
            done = items[place].end
        if change.ids:
            gap = _gap(text, change, done, change.block.end)
            if not made.startswith(gap, at):
                return False
            at, done = at + len(gap), change.block.end
    return made[at:] == text[done:]


def _gap(text: str, change: Change, start: int, end: int) -> str:
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


def _content(text: str, change: Change, at: int) -> str:
    item = change.block.items[at]
    if at not in change.repeated:
        return text[item.start : item.end]
    gone = text[item.text_start : item.text_end]
    if change.block.quoted:
        gone = orjson.loads(f'"{gone}"')
    note = duplicate_note(gone)
    return text[item.start : item.text_start] + note + text[item.text_end : item.end]


def _note(change: Change) -> str:
    """Return the note about the received order, using the labels as sent."""
    items = change.block.items
    if change.ids:
        return number_note([item.label for item in items], change.ids)
    place = {at: i for i, at in enumerate(change.order)}
    order = [place[at] for at in range(len(items))]
    if change.block.labels_stay:
        return order_note([item.label for item in items], order)
    return order_note([items[at].label for at in change.order], order)
