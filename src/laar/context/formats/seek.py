"""Searches of long texts that pass over most of a text at once.

Python's own compare one sign after another where they look for a word, a line end or a pattern;
for a single sign `str.find` compares dozens, and so does numpy.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from itertools import repeat

import numpy as np
import numpy.typing as npt

_OTHERS = 32
"""Signs without a match after which a text is searched by pattern: no faster, but in one call."""

_SMALL = np.uint8(32)  # the bit that small letters have; other signs with it are no letters
_ENOUGH = 3
_LINE_END = ord("\n")
_LONG_TEXT = 16_000
"""Length of a text from which it is worth a call of numpy."""

_LONG_LINE = 800
"""Mean length of a line from which a search at each line end is faster than one through them."""

_PIECE = 1 << 16
"""Signs looked at in one call: longer arrays are given back to the system, and asked for again."""


def matches(pattern: re.Pattern[str], text: str, sign: str) -> Iterator[re.Match[str]]:
    """All matches of a pattern that begins with `sign`: four times as fast where it is rare."""
    others = 0
    at = text.find(sign)
    while at >= 0:
        match = pattern.match(text, at)
        if match is not None:
            yield match
            at = text.find(sign, match.end())
        elif others < _OTHERS:
            others += 1
            at = text.find(sign, at + 1)
        else:
            yield from pattern.finditer(text, at + 1)
            return


def beginnings(text: str, word: str) -> Iterator[int]:
    """Places in a text of ASCII where a word may begin, in letters of any case.

    Args:
        text: the text.
        word: three small letters at least, by which it is found.
    """
    letters = word[:_ENOUGH].encode()
    if len(letters) > _ENOUGH:
        return  # not of ASCII
    for start, signs in _pieces(text, _ENOUGH - 1):
        small = signs | _SMALL
        places = len(small) - _ENOUGH + 1
        found = small[:places] == letters[0]
        for i in range(1, _ENOUGH):
            found &= small[i : i + places] == letters[i]
        each = found.tobytes()
        at = each.find(1)
        while at >= 0:
            yield start + at
            at = each.find(1, at + 1)


class LineEnds:
    """The line ends of a text, and searches for patterns that begin with one.

    Args:
        text: the text.
        like: those of a text that differs by `more` line ends only.
        more: see `like`.
    """

    def __init__(self, text: str, *, like: LineEnds | None = None, more: int = 0) -> None:
        self._text = text
        self._like = like
        self._more = more

    @cached_property
    def count(self) -> int:
        """How many there are."""
        if self._like is not None:
            return self._like.count + self._more
        if not self._text.isascii():
            return self._text.count("\n")
        return sum(int(np.count_nonzero(signs == _LINE_END)) for _, signs in _pieces(self._text, 0))

    @cached_property
    def _places(self) -> list[int] | None:
        """Where they are, if lines are long."""
        text = self._text
        if len(text) < _LONG_TEXT or self.count * _LONG_LINE > len(text):
            return None
        places: list[int] = []
        at = text.find("\n")
        while at >= 0:
            places.append(at)
            at = text.find("\n", at + 1)
        return places

    def matches(
        self, pattern: re.Pattern[str], start: int = 0, stop: int = sys.maxsize
    ) -> Iterator[re.Match[str]]:
        """The same as `finditer`; where lines are long only their ends are looked at."""
        if self._places is None:
            yield from pattern.finditer(self._text, start, stop)
            return
        at = self._places[bisect_left(self._places, start) : bisect_left(self._places, stop)]
        for match in filter(None, map(pattern.match, repeat(self._text), at, repeat(stop))):
            if match.start() >= start:
                yield match
                start = match.end()


def _pieces(text: str, more: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """A text of ASCII in pieces, each with where it begins, and `more` signs of the next one."""
    for start in range(0, len(text) - more, _PIECE):
        yield start, np.frombuffer(text[start : start + _PIECE + more].encode(), np.uint8)
