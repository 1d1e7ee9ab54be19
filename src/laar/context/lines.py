"""The lines of a text, by which documents are recognized (`laar.context.recurrence`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import takewhile
from operator import eq
from typing import NamedTuple, TypeAlias

LONG_LINE = 24
"""Minimum number of characters in a long line, not counting labels and rules."""

MOST_SHORT = 24
"""Maximum number of consecutive short lines considered as tail or head of a document."""

_LABEL = re.compile(
    r"((?:[-*•+>]\s+)?(?:[#=*\-_\[(【<]{0,6}\s?(?:[^\W\d]{1,20}[\s_:#.\-]{0,3})?\d{1,6}"
    r"(?:[\])】>.:|]{1,3}\s*|\s*+[=*\-_#]{1,8}$|\s+))?)"
    r"((?:[^\s:]{1,40}:(?:\s+|$))?)"
)
"""Text that may precede a document on its first line: a bullet, a number or a name with a colon."""

BEGIN, END = 1, 2
"""The edges of a text, in place of keys."""

SURE_TIMES = 8
"""Cap on the count of the usual text around a scope's documents; each other text lowers it by 1."""

NUMBER = re.compile(r"\d+")
NO_LABEL = ("", "")
_RULE = "-=#*_~+|`.:<>/ \t\r"

ParsedLine: TypeAlias = "tuple[int, int, int, int, int, bool]"
"""A parsed line: start; end of its number, label and text; hash of its identifying part; whether it
is long. The last end is 0 for a blank line."""


class TextLines(NamedTuple):
    """The nonblank lines of a text; a known document is a single line.

    Args:
        starts: start of each line, after its indentation.
        cores: start of the text after a possible label.
        ends: end without trailing whitespace.
        keys: hash of a long line's core, a whole short line, or a document's first line.
        last_keys: the same, with a document's last line.
        long: indices of long lines, including documents.
    """

    starts: list[int]
    cores: list[int]
    ends: list[int]
    keys: list[int]
    last_keys: list[int]
    long: list[int]

    def before(self, nth: int) -> int:
        """Return the first of the short lines directly before a long one."""
        return self.long[nth - 1] + 1 if nth else 0

    def after(self, nth: int) -> int:
        """Return where the short lines directly after a long one end."""
        return self.long[nth + 1] if nth + 1 < len(self.long) else len(self.keys)


@dataclass(slots=True, eq=False)
class LongLine:
    """A long line seen before, which may be the first or the last of a document.

    Args:
        before, after: keys of the adjacent long lines; -1 if unknown, 0 once they have varied.
        tail, head: short lines that have always followed or preceded it; None if unknown.
        labels: hashes of number and name at its start, and of each line of its head, from the last
            one up; 0 if there is none, None if they have varied.
        times: number of texts learned from that contained it.
        since: number of the text since which tail and head are known.
    """

    before: int = -1
    after: int = -1
    tail: tuple[int, ...] | None = None
    head: tuple[int, ...] | None = None
    labels: list[tuple[int | None, int | None]] = field(default_factory=list)
    times: int = 0
    since: int = 0


class DocPlace(NamedTuple):
    """A document in a text: its line, its index among long lines, and its first and last line."""

    line: int
    nth: int
    first: LongLine
    last: LongLine


@dataclass(slots=True)
class SeenText:
    """An examined text, to learn from once its request is accepted.

    Args:
        scope: hash of tenant, route and model.
        labels: number and name at the start of lines, by line.
        pairs: keys of adjacent long lines, and of the text's edges with these.
        counted: what to count of the long lines before documents became one line each.
        inner: what to count of the lines within documents.
        stuck: long lines before which no document certainly ends.
        frame: long lines of the frame, with the number of the text since which they are.
        around: sides of the documents, with what was there: key, length and hash.
    """

    scope: int
    text: str
    lines: TextLines
    places: list[DocPlace] = field(default_factory=list)
    labels: dict[int, tuple[str, str]] = field(default_factory=dict)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    counted: list[tuple[int, int, int]] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)
    stuck: set[int] = field(default_factory=set)
    frame: dict[int, int] = field(default_factory=dict)
    around: list[tuple[int, tuple[int, int, int]]] = field(default_factory=list)

    def pair(self) -> list[tuple[int, int]]:
        """Set and return the keys of adjacent long lines, and of the text's edges with these."""
        lines, edges = self.lines, [hash((self.scope, edge)) for edge in (BEGIN, END)]
        befores = [edges[0], *map(lines.last_keys.__getitem__, lines.long)]
        afters = [*map(lines.keys.__getitem__, lines.long), edges[1]]
        self.pairs = [*zip(befores, afters, strict=True)]
        return self.pairs

    def counts(self, nth: int) -> tuple[int, int, int]:
        """Return keys of a long line with the one before, and of both in any pair, for counting.

        A line of the frame between them is not long, but was until a certain text, so what was
        counted before is of no use.
        """
        a, b = self.pairs[nth]
        since = 0
        if self.frame:
            start = self.lines.before(nth)
            gap = range(start, self.lines.after(nth - 1) if nth else self.lines.long[0])
            since = max([self.frame.get(i, 0) for i in gap], default=0)
        return hash((a, b, since)), hash((a, since)), hash((since, b))

    def beside(self, place: DocPlace) -> tuple[int, int, int, int]:
        """Return keys of a document alone, with the line before, the line after, and both."""
        (a, first), (last, b) = self.pairs[place.nth], self.pairs[place.nth + 1]
        own = hash((first, last))
        return own, hash((a, own)), hash((own, b)), hash((a, own, b))

    def join(self, spans: list[DocPlace]) -> None:
        """Make one line of each span, given as a place from its first line to its last."""
        lines = self.lines
        inner: set[int] = set()
        places = {place.line: place for place in self.places}
        for place in spans:
            first, last = place.line, place.nth
            inner.update(range(first + 1, last + 1))
            places[first] = place
            lines.ends[first], lines.last_keys[first] = lines.ends[last], lines.last_keys[last]
        kept = [i for i in range(len(lines.keys)) if i not in inner]
        for own in lines[:-1]:
            own[:] = [own[i] for i in kept]
        at = {i: n for n, i in enumerate(kept)}
        self.labels = {at[i]: label for i, label in self.labels.items() if i in at}
        self.frame = {at[i]: since for i, since in self.frame.items() if i in at}
        lines.long[:] = [at[i] for i in lines.long if i in at]
        nth = {i: n for n, i in enumerate(lines.long)}
        self.places = [
            place._replace(line=at[i], nth=nth[at[i]])
            for i, place in sorted(places.items())
            if i in at
        ]
        self.pair()

    def without_numbers(self, first: int, stop: int) -> tuple[str, ...]:
        """Return the text of some lines, without numbers in short ones, which may be positions."""
        spans = zip(self.lines.starts[first:stop], self.lines.ends[first:stop], strict=True)
        lines = [self.text[start:end] for start, end in spans]
        return tuple([NUMBER.sub("#", line) if len(line) < LONG_LINE else line for line in lines])


def parse_line(line: str) -> ParsedLine:
    """Parse a line."""
    own = line.strip()
    start = len(line) - len(line.lstrip()) if own else 0
    label = _LABEL.match(own)
    number, skip = (label.end(1), label.end()) if label is not None else (0, 0)
    core = own[skip:]
    is_long = min(len(core), len(core.strip(_RULE))) >= LONG_LINE
    if not is_long:
        skip = number = number if number < len(own) else 0
    key = hash((own[skip:], is_long))
    return start, start + number, start + skip, start + len(own), key, is_long


def common_start(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the longest common beginning."""
    return a[: sum(takewhile(bool, map(eq, a, b)))]


def common_end(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the longest common end."""
    return common_start(a[::-1], b[::-1])[::-1]
