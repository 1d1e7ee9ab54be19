"""Searches of long texts that pass over most of a text at once.

Python's own compare one sign after another where they look for a word, a line end or a pattern;
for a single sign `str.find` compares dozens, and so does numpy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["beginnings", "line_ends", "matches"]

_OTHERS = 32
"""Signs without a match after which a text is searched by pattern: no faster, but in one call."""

_SMALL = 32  # the bit that small letters have; other signs with it are no letters
_ENOUGH = 3
_LINE_END = ord("\n")
_PIECE = 1 << 17
"""Signs looked at in one call: longer arrays would be given back to the system, and asked for again."""


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
        signs = signs | _SMALL
        places = len(signs) - _ENOUGH + 1
        found = signs[:places] == letters[0]
        for i in range(1, _ENOUGH):
            found &= signs[i : i + places] == letters[i]
        each = found.tobytes()
        at = each.find(1)
        while at >= 0:
            yield start + at
            at = each.find(1, at + 1)


def line_ends(text: str) -> int:
    """How many line ends there are."""
    if not text.isascii():
        return text.count("\n")
    return sum(int(np.count_nonzero(signs == _LINE_END)) for _, signs in _pieces(text, 0))


def _pieces(text: str, more: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """A text of ASCII in pieces, each with where it begins, and `more` signs of the next one."""
    for start in range(0, len(text) - more, _PIECE):
        yield start, np.frombuffer(text[start : start + _PIECE + more].encode(), np.uint8)
