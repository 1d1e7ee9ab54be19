"""Documents as blocks of one message's content: each moves as the JSON that the body has for it.

Blocks of the types for documents speak for themselves, unless the answer is to cite them by place.
Blocks of text are documents where each begins with a label that counts up, which stays, or where a
tool that looks things up returned several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import orjson

from laar.context.blocks import DOCUMENT_BLOCKS, Block, Item, Refused, count_up
from laar.context.formats.jsonspans import Path, spans_of
from laar.context.formats.openers import closing_marks, label_of
from laar.context.formats.order import carries_meaning
from laar.context.settings import Reason

_TEXTS = ("text", "input_text")
_Run = list[tuple[int, Path]]
"""Places of blocks in the content, each with where its text is below it."""


def scan(text: str, *, most: int, by_tool: bool) -> list[Block]:
    """The longest run of blocks that are documents.

    Args:
        text: JSON of the content.
        most: documents.
        by_tool: a tool that looks things up returned it.

    Raises:
        Refused: there are too many, or an object has a key twice.
    """
    parts: list[Any] = orjson.loads(text) if text else []
    places = [(i, _text_of(part)) for i, part in enumerate(parts)]
    runs = [list(run) for known, run in groupby(places, key=lambda at: bool(at[1])) if known]
    run: _Run = max(runs, key=len, default=[])
    if len(run) > 1:
        cited = any(_cited(parts[i]) for i, _ in run)
        held = Reason.POSITIONAL_LABELS if cited else None
        return [_block(_items(text, parts, run), most, held=held)]
    return _of_texts(text, parts, most, by_tool)


def _of_texts(text: str, parts: Sequence[Any], most: int, by_tool: bool) -> list[Block]:
    found = [
        (i, part["text"])
        for i, part in enumerate(parts)
        if isinstance(part, dict)
        and part.get("type") in _TEXTS
        and isinstance(part.get("text"), str)
    ]
    labels = [(i, label) for i, own in found if (label := label_of(own)) is not None]
    numbers = [number for _, (number, _) in labels]
    if len(labels) > 1 and count_up(numbers):
        items = _items(text, parts, [(i, ("text",)) for i, _ in labels])
        closers = closing_marks(numbers, [text[item.text_start : item.text_end] for item in items])
        if closers is None:
            return []
        below = [
            Item(a + end, b - mark, a + end, b - mark, number)
            for (_, _, a, b, _), (_, (number, end)), mark in zip(
                items, labels, closers, strict=True
            )
        ]
        if any(
            "\\" in text[item.text_start : own.start]
            for item, own in zip(items, below, strict=True)
        ):
            return []  # a label that is written in another way than it reads
        block = _block(below, most, labels_stay=True)
        return [replace(block, start=items[0].start, end=items[-1].end)]
    own = [value for _, value in found]
    if not by_tool or len(own) < len(parts) or len(own) < _LEAST or carries_meaning(own, own=False):
        return []
    return [_block(_items(text, parts, [(i, ("text",)) for i, _ in found]), most, careful=True)]


_LEAST = 2


def _block(
    items: Sequence[Item],
    most: int,
    *,
    labels_stay: bool = False,
    careful: bool = False,
    held: Reason | None = None,
) -> Block:
    if len(items) > most:
        raise Refused(Reason.TOO_MANY)
    return Block(
        tuple(items),
        items[-1].end,
        labels_stay=labels_stay,
        quoted=True,
        shape="parts",
        careful=careful,
        held=held,
        silent=True,
    )


def _text_of(part: Any) -> Path:
    """The path of the text in a document's block; empty for another block."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in DOCUMENT_BLOCKS:
        return ()
    source, content = part.get("source"), part.get("content")
    if isinstance(source, dict) and source.get("type") == "text":
        return ("source", "data") if isinstance(source.get("data"), str) else ()
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        return ("content", 0, "text") if isinstance(content[0].get("text"), str) else ()
    return ()


def _cited(part: dict[str, Any]) -> bool:
    """Whether answers are to name documents by their place."""
    citations = part.get("citations")
    return isinstance(citations, dict) and citations.get("enabled") is True


def _items(text: str, parts: Sequence[Any], run: _Run) -> list[Item]:
    spans = spans_of(text, list(parts), [(i, *sub) for i, sub in run])
    return [Item(*spans[(i,)], spans[(i, *sub)][0] + 1, spans[(i, *sub)][1] - 1) for i, sub in run]
