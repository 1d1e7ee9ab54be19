"""Document formats that are recognized from the first request.

These are JSON, tags named for documents, and content blocks of a message. Documents in other
formats are learned (`laar.context.recurrence`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from laar.context.blocks import Block
from laar.context.formats import lists, parts, xml
from laar.context.settings import ContextSettings

__all__ = ["fixed", "scan"]


def scan(
    text: str, settings: ContextSettings, *, is_parts: bool = False, by_tool: bool = False
) -> list[Block]:
    """Return the blocks of documents in a text, in the first format that matches.

    Args:
        text: the text, decoded.
        settings: formats, sizes and `relabel`.
        is_parts: the text is the JSON of a message's content.
        by_tool: a tool returned the text.

    Raises:
        Refused: there may be documents, but they can't be separated or moved safely.
    """
    found = next(filter(None, _found(text, settings, is_parts, by_tool)), [])
    return [fixed(block, settings) for block in found if len(block.items) >= settings.min_docs]


def _found(
    text: str, settings: ContextSettings, is_parts: bool, by_tool: bool
) -> Iterator[list[Block]]:
    """Yield the blocks in each format, the most reliable format first."""
    families = settings.formats
    least = settings.min_docs
    if is_parts:
        yield parts.scan(text, by_tool=by_tool) if "json" in families else []
        return
    if "json" in families:
        yield lists.scan(text, least)
        yield lists.written_by_python(text, least)
    if "xml" in families:
        yield xml.scan(text, least)


def fixed(block: Block, settings: ContextSettings) -> Block:
    """Return the block, fixed if its labels are position numbers.

    An answer may refer to the numbers, so the order stays unless the settings allow relabeling.
    """
    return replace(block, fixed=True) if block.labels_stay and not settings.relabel else block
