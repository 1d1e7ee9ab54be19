"""Recognisers of documents in prompts: their shape, and the parts that may move.

`shapes` is the table, one row for each shape; the other modules are the few ways in which shapes
are found. `scan` tries them in the order of how sure they are: delimiters that the route declares,
JSON, tags, fences, labels that speak for themselves, records, and last, only where documents were
announced (`places`), points, headings, bullets, rules and paragraphs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
    xml,
)
from laar.context.formats.held import hold
from laar.context.formats.order import source_files
from laar.context.formats.places import Place, places
from laar.context.formats.seek import LineEnds
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
    found = next(filter(None, _found(text, settings, around)), [])
    blocks = [block for block in found if block.documents >= settings.min_docs]
    blocks = [_to_line_ends(text, b) for b in _last_after_examples(text, blocks)]
    return hold(text, blocks, settings, around)


_ONLY_MENTIONED = 2
"""Tags that a text may speak of, without being made of documents in tags."""

MAX_DOCS = 256
"""Documents above which a list stays unchanged. It bounds the search for an order."""

MAX_LINES = 20_000
"""Lines of a text above which it is not looked at line by line: some 5 ms."""

_WORTH_A_NAME = 1024
"""Bytes of announced text from which on it is worth telling that no shape fits."""


def _found(text: str, settings: ContextSettings, around: Surroundings) -> Iterator[list[Block]]:
    """Yields the finds of each recogniser, the surest first; the first not empty counts."""
    families, most = settings.formats, MAX_DOCS
    if around.parts:
        if "json" in families:
            yield parts.scan(text, most=most, by_tool=around.by_tool)
        return
    limits = Limits(settings.min_docs, most, settings.relabel is not False)
    if settings.delimiters:
        yield declared.scan(text, settings.delimiters, most)
    if "json" in families:
        found = lists.scan(text, limits, by_tool=around.by_tool)
        if found is not None:  # the text is JSON, and nothing else
            yield found
            return
    refused: Reason | None = None  # no error: with its traceback it would be a cycle of garbage
    if "xml" in families:
        try:
            tagged = xml.scan(text, limits)
        except Refused as error:
            if xml.mentioned(text) > _ONLY_MENTIONED:
                raise  # they are tags of documents, though not well made
            refused = error.reason
        else:
            if tagged:
                yield [block for block in tagged if not source_files(text, block.items)]
                return
    if "numbered" in families:
        yield fences.scan(text, limits)
    ends = LineEnds(text)
    if len(text) <= MAX_LINES or ends.count <= MAX_LINES:
        view = View(text, ends, around)
        yield openers.unannounced(view, families, most)
        if "records" in families:
            yield records.scan(view, most)
        if "json" in families:
            yield lists.within(view, limits)
        yield _placed(view, families, limits)
    if refused is not None:
        raise Refused(refused)


def _placed(view: View, families: Sequence[str], limits: Limits) -> list[Block]:
    """The blocks in the first place with documents among those where some were announced."""
    unknown: str | None = None
    for place in places(view):
        blocks = next(filter(None, _in_place(view, place, families, limits)), None)
        if blocks:
            return blocks
        if place.points >= Needs.RETRIEVAL and place.end - place.start >= _WORTH_A_NAME:
            unknown = unknown or place.kind
    if unknown is not None:
        raise Unknown(unknown)
    return []


def _in_place(
    view: View, place: Place, families: Sequence[str], limits: Limits
) -> Iterator[list[Block]]:
    """The same as `_found` for a place where documents were announced."""
    text, start, end = view.text, place.start, place.end
    if place.points >= Needs.PLACE:
        if "json" in families:
            yield lists.in_place(text, start, end, limits)
        if "xml" in families:
            tagged = xml.in_place(text, start, end, limits)
            yield [] if tagged and source_files(text, tagged[0].items) else tagged
        if "records" in families:
            yield reprs.in_place(text, start, end, limits.most)
    for recogniser in (openers, cuts):
        block = recogniser.in_place(view, place, families, limits.most)
        if block is not None:
            yield [block]


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
