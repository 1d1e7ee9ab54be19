"""Documents between delimiters that a route declares, for prompts that no other shape fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from laar.context.blocks import Block, Item, Refused
from laar.context.settings import Delimiters, Reason


@lru_cache(maxsize=64)
def _pattern(item: str) -> re.Pattern[str]:
    return re.compile(re.escape(item).replace(re.escape("{n}"), r"(?P<n>\d{1,6})", 1))


def scan(text: str, declared: Sequence[Delimiters], most: int) -> list[Block]:
    """The blocks of the first delimiters that fit.

    Raises:
        Refused: there are more than `most` documents.
    """
    for delimiters in declared:
        block = _block(text, delimiters, most)
        if block is not None:
            return [block]
    return []


def _block(text: str, given: Delimiters, most: int) -> Block | None:
    start = 0
    if given.before:
        at = text.find(given.before)
        if at < 0:
            return None
        start = at + len(given.before)
    end = len(text)
    if given.after:
        end = text.find(given.after, start)
        if end < 0:
            return None
    spans: list[tuple[int, int]] = []
    names: list[str] = []
    if given.item:
        found = list(_pattern(given.item).finditer(text, start, end))
        if not found:
            return None
        stops = [match.start() for match in found[1:]] + [end]
        whole = not any("n" in match.groupdict() for match in found)
        for match, stop in zip(found, stops, strict=True):
            spans.append(_trimmed(text, match.start() if whole else match.end(), stop))
            names.append("" if whole else match["n"])
    else:
        at = start
        while at <= end:
            stop = text.find(given.between, at, end)
            stop = end if stop < 0 else stop
            spans.append(_trimmed(text, at, stop))
            at = stop + len(given.between) if stop < end else end + 1
        spans = [(a, b) for a, b in spans if a < b]
        names = [""] * len(spans)
    if len(spans) < 2 or any(a >= b for a, b in spans):
        return None
    if len(spans) > most:
        raise Refused(Reason.TOO_MANY)
    items = tuple(Item(a, b, a, b, name or None) for (a, b), name in zip(spans, names, strict=True))
    return Block(items, items[-1].end, labels_stay=bool(names[0]), shape="declared")


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without white space around it."""
    own = text[start:end]
    return start + len(own) - len(own.lstrip()), start + len(own.rstrip())
