"""Learn from received orders whether the order of documents is meaningful.

A search ranks the same documents differently per query, but parts of a story, steps of a recipe and
results sorted by a client keep their order. So a document may move once it was seen both before and
after the same other one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

MAX_DOCUMENTS = 30_000
"""Maximum documents whose last position is remembered, 0.2 KB each; LRU eviction."""


@dataclass(slots=True)
class _Last:
    """The last list and position of a document, and whether it ever changed sides with another."""

    whole: int
    place: int
    free: bool


class Sequences:
    """Last positions of documents; the scope (tenant, route and model) is part of the key."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, _Last] = OrderedDict()

    def movable(self, scope: int, docs: Sequence[int]) -> tuple[int, int, bool]:
        """Return the longest run of documents that may be reordered, perhaps empty.

        Returns:
            Start and end of the run, and whether any two documents were seen together before.

        A document seen with others of the list, always in one order, ends a run. A run has at least
        two documents seen in several orders; new ones among them may move.
        """
        free, met = self._compared(scope, docs)
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
        free, _ = self._compared(scope, docs)
        whole = hash(tuple(docs))
        for place, (doc, moves) in enumerate(zip(docs, free, strict=True)):
            key = hash((scope, doc))
            self._last[key] = _Last(whole, place, moves)
            self._last.move_to_end(key)
        while len(self._last) > MAX_DOCUMENTS:
            self._last.popitem(last=False)

    def _compared(self, scope: int, docs: Sequence[int]) -> tuple[list[bool], list[bool]]:
        """Return for each document whether it is free, and whether it met others of the list."""
        known = [self._last.get(hash((scope, doc))) for doc in docs]
        free = [last is not None and last.free for last in known]
        met = [False] * len(docs)
        lists: dict[int, list[int]] = {}
        for i, last in enumerate(known):
            if last is not None:
                lists.setdefault(last.whole, []).append(i)
        lists.pop(hash(tuple(docs)), None)  # a repeated list is no evidence
        for members in [several for several in lists.values() if len(several) > 1]:
            places = [last.place for i in members if (last := known[i]) is not None]
            before = list(accumulate(places, max))
            behind = list(accumulate(reversed(places), min))[::-1]
            for i, place, highest, lowest in zip(members, places, before, behind, strict=True):
                met[i] = True
                free[i] = free[i] or lowest < place or place < highest
        return free, met


_LEAST_FREE = 2
"""Minimum documents of a run that were seen in several orders."""
