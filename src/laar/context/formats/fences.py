"""Documents in fenced blocks under numbered labels.

    Document 1:
    ```
    text
    ```
    [2]
    ...

The labels number places, not documents: they stay, and whole fences move under them. A number in
prose ("x[0] = y[1]") is never taken for a document: it takes a line with the label alone, counting
from 1, directly above a fence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import merge
from itertools import repeat

from laar.context.blocks import MAX_MARKS, Block, Item, Limits, Refused
from laar.context.settings import Reason

_SIGNS = ("```", "~~~")
_FENCE = re.compile(r"(`{3,}+|~{3,}+)([^\n`]*+)(?=\n|\Z)")
_LABEL = re.compile(
    r"\s*+(?:(?:Document|Doc|Passage|Source|Context|Result)[ \t]++)?\[?(\d{1,4})[\].):]{0,3}\s*+",
    re.IGNORECASE,
)
MAX_LABEL_LINE = 40


def scan(text: str, limits: Limits) -> list[Block]:
    """Finds the runs of labelled fences that count from 1.

    Raises:
        Refused: there are too many.
    """
    if not any(sign[0] in text and sign in text for sign in _SIGNS):
        return []
    found: list[list[tuple[str, Item]]] = [[]]
    after = 0
    for item in _fenced(text, limits.most):
        label = _label(text, after, item.start)
        if label != str(len(found[-1]) + 1):
            found.append([])
        if label == str(len(found[-1]) + 1):
            found[-1].append((label, item))
        after = item.end
    blocks: list[Block] = []
    for run in found:
        if len(run) < limits.least:
            continue
        if len(run) > limits.most:
            raise Refused(Reason.TOO_MANY)
        items = tuple(
            Item(item.start, item.end, item.text_start, item.text_end, label) for label, item in run
        )
        blocks.append(Block(items, items[-1].end, labels_stay=True, shape="fences"))
    return blocks


def _fenced(text: str, max_docs: int) -> list[Item]:
    """All fenced blocks; a fence ends at the first line of the same sign, as long or longer."""
    items: list[Item] = []
    opened: re.Match[str] | None = None
    for seen, match in enumerate(_fences(text)):
        if seen > MAX_MARKS * max_docs:
            raise Refused(Reason.TOO_MANY)
        if opened is None:
            opened = match
            continue
        sign, info = match.groups()
        if sign.startswith(opened.group(1)) and not info.strip():
            items.append(Item(opened.start(), match.end(1), opened.end(), match.start()))
            opened = None
    return items


def _fences(text: str) -> Iterator[re.Match[str]]:
    """Fences in text order, as they are asked for; other lines are not looked at."""
    starts = merge(*(_starts(text, sign) for sign in _SIGNS if sign in text))
    return filter(None, map(_FENCE.match, repeat(text), starts))


def _starts(text: str, sign: str) -> Iterator[int]:
    """Starts of the lines that begin with the sign."""
    if text.startswith(sign):
        yield 0
    at = text.find(f"\n{sign}")
    while at >= 0:
        yield at + 1
        at = text.find(f"\n{sign}", at + 1)


def _label(text: str, start: int, end: int) -> str | None:
    """The number that stands alone on the line before a fence."""
    line = text[max(start, end - MAX_LABEL_LINE) : end].rstrip("\n").rpartition("\n")[2]
    if not line.rstrip().rstrip("].):")[-1:].isdecimal():
        return None  # most lines
    match = _LABEL.fullmatch(line)
    return match.group(1) if match else None
