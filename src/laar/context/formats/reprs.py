"""Documents as Python prints them: ``[Document(metadata={...}, page_content='text'), ...]``.

Chains that format no documents send them so. The scan steps over brackets and string literals, in
one pass; text that is not a list of calls of one name is left alone.
"""

from __future__ import annotations

import re

from laar.context.blocks import Block, Item, Refused
from laar.context.settings import Reason

__all__ = ["in_place"]

_BEGIN = re.compile(r"\[(?=(Document|TextNode|NodeWithScore|Chunk|Passage)\()")
_TEXT = re.compile(r"\b(?:page_content|content|text)\s?[=:]\s?(?=['\"])")
_STEP = re.compile(
    r"\"(?:[^\"\\]|\\.)*+(?:\"|\Z)|'(?:[^'\\]|\\.)*+(?:'|\Z)|[(\[{]|[)\]}]", re.DOTALL
)
_COMMA = re.compile(r",\s?")
_MOST_STEPS = 20_000


def in_place(text: str, start: int, stop: int, most: int) -> list[Block]:
    """The list of printed documents that begins there.

    Raises:
        Refused: there are too many.
    """
    begin = _BEGIN.match(text, start, stop)
    if begin is None:
        return []
    call = f"{begin[1]}("
    at, steps = begin.end(), 0
    items: list[Item] = []
    while text.startswith(call, at):
        end, steps = _end(text, at, steps)
        own = _TEXT.search(text, at, end)
        literal = _STEP.match(text, own.end(), end) if own is not None else None
        if not end or literal is None:
            return []
        items.append(Item(at, end, literal.start() + 1, literal.end() - 1))
        if len(items) > most:
            raise Refused(Reason.TOO_MANY)
        comma = _COMMA.match(text, end)
        if comma is None:
            at = end
            break
        at = comma.end()
    if text[at : at + 1] != "]" or len(items) < 2:
        return []
    return [Block(tuple(items), at + 1, shape="printed", start=begin.start())]


def _end(text: str, at: int, steps: int) -> tuple[int, int]:
    """The end of a call, 0 if it has none, and the steps taken so far."""
    depth = 0
    while steps < _MOST_STEPS and (match := _STEP.search(text, at)) is not None:
        steps += 1
        at = match.end()
        sign = match.group()
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
            if not depth:
                return at, steps
    return 0, steps
