"""Document formats that are recognized from the first request.

These are JSON, tags named for documents, and content blocks of a message. Documents in other
formats are learned (`laar.context.recurrence`).
"""

from __future__ import annotations

from collections.abc import Iterator

from laar.context.blocks import MIN_DOCS, Block
from laar.context.formats import lists, parts, xml

__all__ = ["scan"]


def scan(text: str, *, is_parts: bool = False, by_tool: bool = False) -> list[Block]:
    """Return the blocks of documents in a text, in the first format that matches.

    Raise `SkippedText` if there may be documents, but they can't be separated or moved safely.

    Args:
        text: the text, decoded.
        is_parts: the text is the JSON of a message's content.
        by_tool: a tool returned the text.
    """
    found = next(filter(None, _found(text, is_parts, by_tool)), [])
    return [block for block in found if len(block.items) >= MIN_DOCS]


def _found(text: str, is_parts: bool, by_tool: bool) -> Iterator[list[Block]]:
    """Yield the blocks in each format, the most reliable format first."""
    if is_parts:
        yield parts.scan(text, by_tool=by_tool)
        return
    yield lists.scan(text)
    yield lists.written_by_python(text)
    yield xml.scan(text)
