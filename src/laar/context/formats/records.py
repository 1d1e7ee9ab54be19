"""Documents as records of named lines: ``Source: a.md`` and under it ``Content: text``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, repeat

from laar.context.blocks import Block, Item, Refused
from laar.context.formats import cues, words
from laar.context.formats.ends import end_of_last, trimmed
from laar.context.formats.view import View
from laar.context.settings import Reason

_LINE = re.compile(
    r"\n[ \t]*+(?:[-*][ \t]++)?(?:\*\*)?"
    # Most lines have no colon so soon.
    r"(?=[asulfdtmcpenrvASULFDTMCPENRV][\w \t]{2,}+(?:\*\*)?[ \t]*+:)(?i:(?P<from>"
    r"source|url|link|document|file(?:[ _]?name)?|"
    r"(?:article[ _])?title|(?:doc(?:ument)?|article)[ _](?:id|title|name)|metadata|"
    r"(?P<loose>name|page|article|page[ _]title|relevance|score))|"
    r"(?P<own>content|text|page[ _]content|(?P<loosely>summary|value)|"
    r"(?:article[ _])?(?:snippet|passage|excerpt|chunk|content|text)))"
    r"(?:\*\*)?[ \t]*+:(?:\*\*)?"
)
_MOST = 2048
_NEAR = 700
_WIDEST = 8  # named lines of one record


def scan(view: View, most: int) -> list[Block]:
    """All runs of records that begin with the same line."""
    lined = view.lined
    lines: list[tuple[int, str, bool]] = []
    loose = False
    for match in map(_LINE.match, repeat(lined), view.heads):
        if match is None:
            continue
        lines.append((match.start(), match.group().strip().casefold(), match["own"] is not None))
        loose = loose or match["loose"] is not None or match["loosely"] is not None
        if len(lines) > _MOST:
            raise Refused(Reason.TOO_MANY)
    if len(lines) < 4 or (loose and not _looked_up(view, lines[0][0])):
        return []
    blocks: list[Block] = []
    for run in _runs(view, lines):
        if len(run) > most:
            raise Refused(Reason.TOO_MANY)
        text = view.text
        spans = [trimmed(text, a, b) for a, b in run]
        last = run[-1][0]
        end, sure = end_of_last(view, last, run[-1][1], spans[:-1])
        spans[-1] = trimmed(text, last, end)
        items = tuple(Item(a, b, a, b) for a, b in spans)
        kept = items if sure else items[:-1]
        blocks.append(Block(kept, kept[-1].end, shape="records", pinned=len(items) - len(kept)))
    return blocks


def _looked_up(view: View, start: int) -> bool:
    """Whether words show retrieval; users write lists of names with values themselves."""
    before = view.text[max(0, start - _NEAR) : start]
    return view.around.by_tool or words.RETRIEVAL.are_in(before)


def _runs(view: View, lines: Sequence[tuple[int, str, bool]]) -> list[list[tuple[int, int]]]:
    """Records whose first two lines are named alike; a question ends a run."""
    first, second = lines[0], lines[1]
    again = next((i for i, line in enumerate(lines[:_WIDEST]) if i and line[1] == first[1]), 0)
    if first[1] == second[1] or not any(line[2] for line in lines[:again]):
        return []
    runs: list[list[tuple[int, int]]] = []
    run: list[tuple[int, int]] = []
    starts = [
        at
        for (at, key, _), (_, after, _) in pairwise(lines)
        if (key, after) == (first[1], second[1])
    ]
    for start, stop in pairwise((*starts, len(view.text))):
        cue = next(cues.questions(view.lined[start + 1 : stop + 1]), None)
        run.append((start, stop))
        if cue is not None and stop < len(view.text):
            run[-1] = (start, start + 1 + cue.start())
            runs.append(run)
            run = []
    runs.append(run)
    return [run for run in runs if len(run) > 1]
