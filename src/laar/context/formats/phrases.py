"""Phrases to look for in prompts, as one pattern each."""

from __future__ import annotations

import re

import xxhash

_WORTH_A_HASH = 32
"""Characters of a text from which on its result is kept."""

_MOST_KNOWN = 4096


class Phrases:
    """Phrases to look for in a text, in letters of any case; made for speed.

    Args:
        pattern: pattern of small letters; each phrase begins with a word.
        others: literals that need no word's beginning, in scripts that write without blanks.
        beside: pattern of phrases that begin with a sign.
    """

    def __init__(self, pattern: str, *, others: tuple[str, ...] = (), beside: str = "") -> None:
        self._pattern = re.compile(rf"\b(?:{pattern})")
        self._others = others
        self._beside = re.compile(beside) if beside else None
        self._known: dict[int, bool] = {}  # by hash; what stands around documents comes again

    def end_in(self, text: str) -> int:
        """The approximate end of the first phrase; -1 if there is none."""
        small = text.lower()
        match = self._pattern.search(small)
        if match is None and self._beside is not None:
            match = self._beside.search(small)
        if match is not None:
            return match.end()
        if small.isascii():
            return -1
        return max((small.find(other) for other in self._others), default=-1)

    def are_in(self, text: str) -> bool:
        """Whether there is one."""
        if len(text) < _WORTH_A_HASH:
            return self.end_in(text) >= 0
        key = xxhash.xxh3_64_intdigest(text.encode())
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self.end_in(text) >= 0
        return known
