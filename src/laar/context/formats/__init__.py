"""Recognisers of documents in prompts: their shape, and the parts that may move.

`shapes` is the table, one row for each shape; the other modules are the few ways in which shapes
are found. `scan` tries them in the order of how sure they are: delimiters that the route declares,
JSON, tags, fences, labels that speak for themselves, records, and last, only where documents were
announced (`places`), points, headings, bullets, rules and paragraphs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from laar.context.blocks import Block, Limits, Refused
from laar.context.formats import (
    cues,
    cuts,
    declared,
    fences,
    lists,
    openers,
    parts,
    records,
    reprs,
    words,
    xml,
)
from laar.context.formats.order import in_sequence, source_files
from laar.context.formats.places import places
from laar.context.formats.shapes import SHAPES, Needs, Shape
from laar.context.formats.view import NO_SURROUNDINGS, Surroundings, View
from laar.context.settings import ContextSettings, Reason

__all__ = ["SHAPES", "Needs", "Shape", "Surroundings", "Unknown", "scan"]


class Unknown(Refused):
    """Documents were announced, but nothing there separates one from the next.

    Args:
        kind: kind of the announcement.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(Reason.UNKNOWN_SHAPE)
        self.kind = kind


def scan(
    text: str, settings: ContextSettings, around: Surroundings = NO_SURROUNDINGS
) -> list[Block]:
    """The blocks of documents in a text, in the first shape that has any.

    Args:
        text: the text, decoded.
        settings: families, sizes, `relabel` and `delimiters`.
        around: the rest of the prompt.

    Raises:
        Refused: there may be documents, but they can't be separated or moved safely.
    """
    blocks = [
        block for block in _found(text, settings, around) if block.documents >= settings.min_docs
    ]
    blocks = [_to_line_ends(text, b) for b in _last_after_examples(text, blocks)]
    return _held(text, blocks, settings, around)


def _found(text: str, settings: ContextSettings, around: Surroundings) -> list[Block]:
    families, most = settings.formats, settings.max_docs
    if around.parts:
        return parts.scan(text, most=most, by_tool=around.by_tool) if "json" in families else []
    limits = Limits(settings.min_docs, most, settings.relabel is not False)
    if settings.delimiters:
        blocks = declared.scan(text, settings.delimiters, most)
        if blocks:
            return blocks
    if "json" in families:
        found = lists.scan(text, limits, by_tool=around.by_tool)
        if found is not None:
            return found
    found = []
    refused: Reason | None = None  # no error: with its traceback it would be a cycle of garbage
    if "xml" in families:
        try:
            found = xml.scan(text, limits)
        except Refused as error:
            if xml.mentioned(text) > _ONLY_MENTIONED:
                raise  # they are tags of documents, though not well made
            refused, found = error.reason, []
        if found:
            return [block for block in found if not source_files(text, block.items)]
    if "numbered" in families:
        found = fences.scan(text, limits)
        if found:
            return found
    if len(text) <= MAX_LINES or text.count("\n") <= MAX_LINES:
        view = View(text, around)
        found = openers.unannounced(view, families, most)
        if not found and "records" in families:
            found = records.scan(view, most)
        if not found and "json" in families:
            found = lists.within(view, limits)
        if not found:
            found = _placed(view, families, limits)
    if not found and refused is not None:
        raise Refused(refused)
    return found


def _placed(view: View, families: Sequence[str], limits: Limits) -> list[Block]:
    """The blocks in the first place with documents among those where some were announced."""
    text, most = view.text, limits.most
    unknown: str | None = None
    for place in places(view):
        if "json" in families and place.points >= Needs.PLACE:
            blocks = lists.in_place(text, place.start, place.end, limits)
            if blocks:
                return blocks
        if "xml" in families and place.points >= Needs.PLACE:
            blocks = xml.in_place(text, place.start, place.end, limits)
            if blocks and not source_files(text, blocks[0].items):
                return blocks
        if "records" in families and place.points >= Needs.PLACE:
            blocks = reprs.in_place(text, place.start, place.end, most)
            if blocks:
                return blocks
        block = openers.in_place(view, place, families, most)
        block = block or cuts.in_place(view, place, families, most)
        if block is not None:
            return [block]
        if place.points >= Needs.RETRIEVAL and place.end - place.start >= _WORTH_A_NAME:
            unknown = unknown or place.kind
    if unknown is not None:
        raise Unknown(unknown)
    return []


_ONLY_MENTIONED = 2
"""Tags that a text may speak of, without being made of documents in tags."""

MAX_LINES = 20_000
"""Lines of a text above which it is not looked at line by line: some 5 ms."""

_WORTH_A_NAME = 1024
"""Bytes of announced text from which on it is worth telling that no shape fits."""


def _to_line_ends(text: str, block: Block) -> Block:
    """The block with the blanks at the ends of lines in its items.

    If they stayed with the places, they would make prompts with the same documents differ.
    """
    if block.quoted:
        return block
    ends = [_LINE_END.match(text, item.end) for item in block.items]
    if not any(ends):
        return block
    items = tuple(
        item if end is None else item._replace(end=end.end())
        for item, end in zip(block.items, ends, strict=True)
    )
    return replace(block, items=items, end=max(block.end, items[-1].end))


_LINE_END = re.compile(r"[ \t]+(?=[\r\n]|\Z)")


def _last_after_examples(text: str, blocks: list[Block]) -> list[Block]:
    """Drops the blocks of worked examples, which end with a question and its answer."""
    kept: list[Block] = []
    for i, block in enumerate(blocks):
        following = blocks[i + 1].begin if i + 1 < len(blocks) else None
        if following is not None and block.shape in {"labelled", "records"}:
            between = f"\n{text[block.end : following]}"
            if any(match["answered"] for match in cues.questions(between)):
                continue
        kept.append(block)
    return kept


def _held(
    text: str, blocks: list[Block], settings: ContextSettings, around: Surroundings
) -> list[Block]:
    """The blocks, held where the prompt may use their order or the numbers of their places."""
    if settings.relabel is True or all(block.held is not None for block in blocks):
        return blocks
    first, last = blocks[0].begin, blocks[-1].end
    near = (text[max(0, first - _READ) : first], text[last : last + _READ], *around.asked)
    placed = any(map(words.ORDERED.are_in, near))
    near += (*around.later, around.answer)
    placed = placed or any(map(words.PLACES.are_in, near))
    counted = placed or settings.relabel is False or any(map(words.CITES.are_in, near))
    counted = counted or words.COUNTED.search(around.answer) is not None
    numbered = placed or any(map(words.NUMBERED.are_in, near))

    def held(block: Block) -> bool:
        if in_sequence([text[a : a + _HEAD] for _, _, a, _, _ in block.items]):
            return True
        if block.labels_stay:
            return counted or numbered or _speak_of_each_other(text, block)
        return placed or (numbered and not _have_numbers(block))

    return [
        replace(block, held=Reason.POSITIONAL_LABELS)
        if block.held is None and held(block)
        else block
        for block in blocks
    ]


def _have_numbers(block: Block) -> bool:
    """Whether the documents' own names hold numbers, by which a prompt may speak of them."""
    return all(item.label and _DIGIT.search(item.label) for item in block.items)


_HEAD = 80
_DIGIT = re.compile(r"\d")


def _speak_of_each_other(text: str, block: Block) -> bool:
    """Whether a document names another by its label, as in "see Document 3"."""
    noun = _NOUN.search(text[block.begin : block.items[0].start].lower())
    if noun is None:
        return False
    named = re.compile(rf"{noun.group()}(?<![</\w]{noun.group()})s?[ #]{{0,2}}\[?\d{{1,3}}\b")
    inside = text[block.items[0].start : block.end].lower()
    first = block.items[0].start
    return any(named.search(inside, a - first, b - first) for a, b, *_ in block.items)


_NOUN = re.compile(r"[^\W\d_]{3,}")


_READ = 4000
"""Characters that are read before and after documents; citations and orders are named there."""
