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

KEY_LINES = 3
"""Number of long lines by which a document is looked up: chunks may share the first two, which are
their file's name and address."""

_LABEL = re.compile(
    r"((?:[-*•+>]\s+)?(?:[#=*\-_\[(【<]{0,6}\s?(?:[^\W\d]{1,20}[\s_:#.\-]{0,3})?\d{1,6}"
    r"(?:[\])】>.:|]{1,3}\s*|\s*+[=*\-_#]{1,8}$|\s+))?)"
    r"((?:[^\s:]{1,40}:(?:\s+|$))?)"
)
"""Text that may precede a document on its first line: a bullet, a number or a name with a colon."""

NUMBER = re.compile(r"\d+")
_RULE = "-=#*_~+|`.:<>/ \t\r"

ParsedLine: TypeAlias = "tuple[int, int, int, int, int, bool]"
"""A parsed line: start; end of its number, label and text; hash of its identifying part; whether it
is long. The last end is 0 for a blank line."""


class Lines(NamedTuple):
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
class Piece:
    """A span seen before, from its first to its last long line.

    Args:
        before, after: keys of the adjacent long lines; 0 once they have varied.
        tail, head: short lines that have always followed or preceded it; None if unknown.
        labels: hashes of number and name at the start of its first long line, and of each line of
            its head, from the last one up; 0 if there is none, None if they have varied.
        previous, next: the adjacent documents; 0 once they have varied.
        times: number of texts learned from that contained it.
    """

    before: int
    after: int
    tail: tuple[int, ...] | None = None
    head: tuple[int, ...] | None = None
    labels: list[tuple[int | None, int | None]] = field(default_factory=list)
    previous: int = -1
    next: int = -1
    times: int = 1


class Place(NamedTuple):
    """A document in a text: its line, its index among long lines, and its piece."""

    line: int
    nth: int
    piece: Piece


@dataclass(slots=True)
class Seen:
    """An examined text, to learn from once its request is accepted."""

    scope: int
    text: str
    lines: Lines
    places: list[Place]
    left: int  # characters that may still be compared with documents
    labels: dict[int, tuple[str, str]] = field(default_factory=dict)

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


NO_LABEL = ("", "")


def common_start(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the longest common beginning."""
    return a[: sum(takewhile(bool, map(eq, a, b)))]


def common_end(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the longest common end."""
    return common_start(a[::-1], b[::-1])[::-1]
