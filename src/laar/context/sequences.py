"""Learn from received prompts whether the order of documents is meaningful and worth changing.

A search ranks the same documents differently for each query, but the parts of a story, the steps of
a recipe and results sorted by a client keep their order. So a document may move once it has been
seen both before and after the same other document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from laar.latest import Latest

MAX_DOCUMENTS = 30_000
"""Maximum number of documents whose last position is remembered (0.2 KB each); LRU eviction."""


@dataclass(slots=True)
class _Last:
    """A document's last list and position; `free` if it was seen before and after some other."""

    whole: int
    place: int
    free: bool


class Sequences:
    """Last positions of documents; the scope (tenant, route and model) is part of the key."""

    def __init__(self) -> None:
        self._last: Latest[int, _Last] = Latest(MAX_DOCUMENTS)

    def movable(self, scope: int, docs: Sequence[int]) -> tuple[int, int, bool]:
        """Return the longest run of documents that may be reordered; it may be empty.

        Returns:
            Start and end of the run, and whether any two documents were seen together before.

        A document that was seen with others of the list in only one order ends a run. A run has at
        least two documents that were seen in several orders; new documents among them may move.
        """
        free, met = self._compared([hash((scope, doc)) for doc in docs])
        best = (0, 0)
        start = 0
        for i in range(len(docs) + 1):
            if i == len(docs) or (met[i] and not free[i]):
                if sum(free[start:i]) >= _LEAST_FREE and i - start > best[1] - best[0]:
                    best = (start, i)
                start = i + 1
        return *best, any(met)

    def observe(self, scope: int, docs: Sequence[int]) -> None:
        """Record an order as received."""
        keys = [hash((scope, doc)) for doc in docs]
        free, _ = self._compared(keys)
        whole = hash(tuple(keys))
        if all(free) and len(self._last) < MAX_DOCUMENTS // 2:  # no eviction is near
            for last in map(self._last.__getitem__, keys):
                last.whole, last.free = whole, True
        else:
            for place, (key, moves) in enumerate(zip(keys, free, strict=True)):
                self._last[key] = _Last(whole, place, moves)

    def _compared(self, keys: Sequence[int]) -> tuple[list[bool], list[bool]]:
        """Return, for each document, whether it may move and whether it was seen with others."""
        known = list(map(self._last.get, keys))
        free = [last is not None and last.free for last in known]
        if all(free):
            return free, free  # each was seen with another document
        met = [False] * len(keys)
        lists: dict[int, list[int]] = {}
        for i, last in enumerate(known):
            if last is not None:
                lists.setdefault(last.whole, []).append(i)
        lists.pop(hash(tuple(keys)), None)  # a repeated list is not evidence
        for members in [several for several in lists.values() if len(several) > 1]:
            places = [last.place for i in members if (last := known[i]) is not None]
            before = list(accumulate(places, max))
            behind = list(accumulate(reversed(places), min))[::-1]
            for i, place, highest, lowest in zip(members, places, before, behind, strict=True):
                met[i] = True
                free[i] = free[i] or lowest < place or place < highest
        return free, met


_LEAST_FREE = 2
"""Minimum number of documents in a run that were seen in several orders."""
