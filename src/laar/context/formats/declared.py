"""Find documents by delimiters that a route declares, for prompts in an unknown format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from laar.context.blocks import MAX_DOCS, MAX_MARKS, Block, Item, Refused
from laar.context.settings import Delimiters, Reason


def scan(text: str, declared: Sequence[Delimiters]) -> list[Block]:
    """Return the block of the first matching delimiters.

    Raises:
        Refused: there are more than `MAX_DOCS` documents, or `MAX_MARKS` delimiters for each.
    """
    found = (_block(text, delimiters) for delimiters in declared)
    return next(([block] for block in found if block is not None), [])


def _block(text: str, given: Delimiters) -> Block | None:
    start = text.find(given.before) + len(given.before)
    end = text.find(given.after, start) if given.after else len(text)
    if given.before not in text or end < 0:
        return None
    numbered = "{n}" in given.item
    literal = re.escape(given.item or given.between)
    pattern = re.compile(literal.replace(re.escape("{n}"), r"(?P<n>\d{1,6})", 1))
    marks = list(islice(pattern.finditer(text, start, end), MAX_MARKS * MAX_DOCS))
    begins = [mark.end() if numbered or not given.item else mark.start() for mark in marks]
    stops = [mark.start() for mark in marks] + [end]
    if given.item:
        del stops[0]
    else:
        begins.insert(0, start)
    spans = [_trimmed(text, a, b) for a, b in zip(begins, stops, strict=True)]
    if not given.item:
        spans = [(a, b) for a, b in spans if a < b]
    if len(spans) < 2 or any(a >= b for a, b in spans):
        return None
    if len(spans) > MAX_DOCS or len(marks) == MAX_MARKS * MAX_DOCS:
        raise Refused(Reason.TOO_MANY)
    names = [mark["n"] for mark in marks] if numbered else [None] * len(spans)
    items = tuple(Item(a, b, a, b, name) for (a, b), name in zip(spans, names, strict=True))
    return Block(items, items[-1].end, labels_stay=numbered, shape="declared")


_LINE_END = re.compile(r"[ \t]+(?=[\r\n]|\Z)")


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without surrounding whitespace, except at the end of its last line.

    If that whitespace stayed in place, prompts with the same documents would differ.
    """
    own = text[start:end]
    stop = start + len(own.rstrip())
    blanks = _LINE_END.match(text, stop)
    return start + len(own) - len(own.lstrip()), min(blanks.end(), end) if blanks else stop
