"""Documents as Python prints them: ``[Document(metadata={...}, page_content='text'), ...]``.

Chains that format no documents send them so, one by one (``page_content='text' metadata={...}``) or
as a list of strings. The scan steps over brackets and string literals, in one pass; text that is
none of these from its beginning on is left alone.
"""

from __future__ import annotations

import re

from laar.context.blocks import Block, Item, Refused
from laar.context.settings import Reason

_BEGIN = re.compile(r"\[(?=(Document|TextNode|NodeWithScore|Chunk|Passage)\()")
_TEXT = re.compile(r"\b(?:page_content|content|text)\s?[=:]\s?(?=['\"])")
_STEP = re.compile(
    r"\"(?:[^\"\\]|\\.)*+(?:\"|\Z)|'(?:[^'\\]|\\.)*+(?:'|\Z)|[(\[{]|[)\]}]", re.DOTALL
)
_RECORD = re.compile(r"page_content=(?=['\"])")
_METADATA = re.compile(r"\smetadata=(?=\{)")
_STRINGS = re.compile(r"\[(?=['\"])")
_COMMA = re.compile(r",\s?")
_MOST_STEPS = 20_000
_LEAST_CHARS = 12


def in_place(text: str, start: int, stop: int, most: int) -> list[Block]:
    """The list of printed documents that begins there.

    Raises:
        Refused: there are too many.
    """
    begin = _BEGIN.match(text, start, stop)
    if begin is None:
        return _records(text, start, stop, most) or _strings(text, start, stop, most)
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


def _records(text: str, start: int, stop: int, most: int) -> list[Block]:
    """Documents printed one by one."""
    at, steps = start, 0
    items: list[Item] = []
    while (head := _RECORD.match(text, at, stop)) is not None:
        own = _literal(text, head.end(), stop)
        if own is None:
            return []
        end = own[1] + 1
        metadata = _METADATA.match(text, end, stop)
        if metadata is not None:
            end, steps = _end(text, metadata.end(), steps)
        if not end:
            return []
        items.append(Item(at, end, *own))
        if len(items) > most:
            raise Refused(Reason.TOO_MANY)
        at = end
        while at < stop and (text[at].isspace() or text[at] == ","):
            at += 1
    return [Block(tuple(items), items[-1].end, shape="printed")] if len(items) > 1 else []


def _strings(text: str, start: int, stop: int, most: int) -> list[Block]:
    """Texts as a list of strings."""
    begin = _STRINGS.match(text, start, stop)
    items: list[Item] = []
    at = stop if begin is None else begin.end()
    while (own := _literal(text, at, stop)) is not None:
        items.append(Item(at, own[1] + 1, *own))
        if own[1] - own[0] < _LEAST_CHARS or " " not in text[own[0] : own[1]]:
            return []  # names
        if len(items) > most:
            raise Refused(Reason.TOO_MANY)
        at = own[1] + 1
        comma = _COMMA.match(text, at, stop)
        if comma is None:
            break
        at = comma.end()
    if len(items) < 2 or text[at : at + 1] != "]":
        return []
    return [Block(tuple(items), at + 1, shape="printed", start=start)]


def _literal(text: str, at: int, stop: int) -> tuple[int, int] | None:
    """The inside of the string literal that begins there."""
    match = _STEP.match(text, at, stop) if text[at : at + 1] in {"'", '"'} else None
    if match is None or len(match.group()) < 2 or match.group()[-1] != text[at]:
        return None
    return at + 1, match.end() - 1


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
