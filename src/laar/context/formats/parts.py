"""Documents as blocks of a message's content, moved as raw JSON.

Blocks of a document type are documents; they stay in place if answers cite them by position. Text
blocks are documents if a tool returned several of them and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import orjson

from laar.context.blocks import DOCUMENT_BLOCKS, MAX_DOCS, Block, Document, SkippedText, count_up
from laar.context.formats.jsonspans import Path, spans_of
from laar.context.settings import Reason

_TEXTS = ("text", "input_text")
_Run = list[tuple[int, Path]]
"""Consecutive blocks: each block's index in the content, and the path of its text."""


def scan(text: str, *, by_tool: bool) -> list[Block]:
    """Return the longest run of blocks that are documents.

    Raise `SkippedText` if there are too many, or an object has a duplicate key.

    Args:
        text: JSON of the content.
        by_tool: a tool returned the content.
    """
    parts: list[Any] = orjson.loads(text)
    places = [(i, _text_of(part)) for i, part in enumerate(parts)]
    runs = [list(run) for known, run in groupby(places, key=lambda at: bool(at[1])) if known]
    run: _Run = max(runs, key=len, default=[])
    if len(run) > 1:
        return [_block(text, run, fixed=any(_cited(parts[i]) for i, _ in run))]
    return _of_texts(text, parts) if by_tool else []


def _of_texts(text: str, parts: Sequence[Any]) -> list[Block]:
    """Return the blocks of a tool result, if all are text; fixed if labels number them."""
    own = [_own_text(part) for part in parts]
    if not own or not all(own):
        return []
    numbers = [match[1] if (match := _COUNTED.match(text)) else "" for text in own]
    run: _Run = [(i, ("text",)) for i in range(len(own))]
    return [_block(text, run, fixed=count_up(numbers))]


def _own_text(part: object) -> str:
    """Return the text of a text block; empty for other blocks."""
    if not isinstance(part, dict) or part.get("type") not in _TEXTS:
        return ""
    text = part.get("text")
    return text if isinstance(text, str) else ""


_COUNTED = re.compile(r"\W{0,8}(?:[^\W\d]{1,20}[ #_\[]{0,3})?(\d{1,4})\b")
"""A numbered label at the start of a text."""


def _block(text: str, run: _Run, *, fixed: bool) -> Block:
    if len(run) > MAX_DOCS:
        raise SkippedText(Reason.TOO_MANY)
    spans = spans_of(text, [(i, *sub) for i, sub in run])
    items = tuple(
        [Document(*spans[(i,)], spans[(i, *sub)][0] + 1, spans[(i, *sub)][1] - 1) for i, sub in run]
    )
    return Block(items, items[-1].end, quoted=True, shape="parts", fixed=fixed)


def _text_of(part: Any) -> Path:
    """Return the path of the text in a document block; empty for other blocks."""
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
    """Return whether answers cite documents by position."""
    citations = part.get("citations")
    return isinstance(citations, dict) and citations.get("enabled") is True
