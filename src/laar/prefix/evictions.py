"""The probability that evicted text is requested again, by its age.

A prefilled prompt takes up room in its endpoint's cache. If the cache is full, the least recently
used text is evicted. That costs nothing if it is never requested again, and a full prefill if its
conversation continues. The age of the evicted text tells these cases apart: an endpoint whose
oldest prompts are from yesterday loses nothing, while one whose oldest prompts were used half a
minute ago loses prompts that are about to return.

So returns are counted by age, over the whole fleet: of the text that was not requested during the
first `a` seconds after its use, the share that is requested before `2 a` (a life table in half
octaves, which accounts for text that has not returned yet). The count stops at `2 a` because a
little more cache keeps text only a little longer. In a cache that is much too small for all
requests, that share is small, as it should be.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from laar.prefix.blocks import Chain
from laar.prefix.demand import PLACES

_AGES_S = tuple(2.0 ** (half / 2.0) for half in range(1, 27))
"""Upper limits of the age classes, up to over two hours. Older text is assumed never to be
requested again."""

_MARKS = np.arange(len(_AGES_S) + 1)  # class boundaries by index, including the start

MEMORY_S = 120.0
"""Minimum time constant of the counts; for long ages it is eight times the age."""

MAX_PROMPTS = 65_536
"""Maximum number of prompts remembered (about 15 MB); the oldest are dropped first."""

MAX_SHARE = 0.75
"""Cap on the share: text that returns evicts other text in turn, which multiplies evictions by
1 / (1 - share), at most four."""

_AT_ONCE = 500  # moves between classes at a time (about 1 ms); later prompts do the rest

_DOUBT_BYTES = 100_000.0  # added to the bytes seen, since a few prompts prove nothing


class Evictions:
    """Counts text that is requested again."""

    def __init__(self) -> None:
        # Prompts by age class: when each was last used, and its size.
        self._waiting = [OrderedDict[int, tuple[float, int]]() for _ in _AGES_S]
        self._age_of: dict[int, int] = {}
        self._returned = [0.0] * len(_AGES_S)
        self._stayed_away = [0.0] * len(_AGES_S)
        self._at = [0.0] * len(_AGES_S)
        self._stay = [0.0] * len(_AGES_S)  # log of the share that is not requested, by age
        self._next_at = -math.inf  # earliest time at which an entry changes class
        self._survival: npt.NDArray[np.float64] | None = None

    def note(self, chain: Chain, now: float) -> None:
        """Record that a prompt was sent to some endpoint."""
        known = bisect_right(PLACES, len(chain.hashes))
        if not known or not math.isfinite(now):
            return
        if now >= self._next_at:
            self._grow_older(now)
        hashes = chain.hashes
        for place in reversed(PLACES[:known]):
            age = self._age_of.pop(hashes[place - 1], None)
            if age is not None:
                _, size = self._waiting[age].pop(hashes[place - 1])
                self._count(self._returned, age, min(size, chain.total_bytes), now)
                break
        key = hashes[PLACES[known - 1] - 1]
        self._age_of[key] = 0
        self._waiting[0][key] = now, chain.total_bytes
        self._next_at = min(self._next_at, now + _AGES_S[0])
        if len(self._age_of) > MAX_PROMPTS:
            oldest = next(waiting for waiting in reversed(self._waiting) if waiting)
            del self._age_of[oldest.popitem(last=False)[0]]

    def again(self, ages_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return what share of text of these ages is requested again, at most `MAX_SHARE`."""
        if self._survival is None:
            self._survival = np.cumsum([0.0, *self._stay])
        # fmin and fmax ignore NaN, so an unknown age is treated as 1 s.
        places = 2.0 * np.log2(np.fmin(np.fmax(ages_s, 1.0), _AGES_S[-1]))
        now = np.interp(places, _MARKS, self._survival)
        at_twice = np.interp(places + 2.0, _MARKS, self._survival)
        found: npt.NDArray[np.float64] = np.minimum(MAX_SHARE, -np.expm1(at_twice - now))
        return found

    def _grow_older(self, now: float) -> None:
        """Move text that was not requested again to the next age class."""
        self._next_at, left = math.inf, _AT_ONCE
        for age, (waiting, until_s) in enumerate(zip(self._waiting, _AGES_S, strict=True)):
            while waiting:
                key, (used_at, size) = next(iter(waiting.items()))
                if now - used_at < until_s:
                    self._next_at = min(self._next_at, used_at + until_s)
                    break
                if (left := left - 1) < 0:
                    self._next_at = now
                    return
                del waiting[key]
                self._count(self._stayed_away, age, size, now)
                if age + 1 < len(_AGES_S):
                    self._waiting[age + 1][key] = used_at, size
                    self._age_of[key] = age + 1
                else:
                    del self._age_of[key]

    def _count(self, counts: list[float], age: int, size: int, now: float) -> None:
        memory_s = max(MEMORY_S, 8.0 * _AGES_S[age])
        faded = math.exp(-min(700.0, max(0.0, now - self._at[age]) / memory_s))
        self._returned[age] *= faded
        self._stayed_away[age] *= faded
        self._at[age] = now
        counts[age] += size
        back, away = self._returned[age], self._stayed_away[age]
        self._stay[age] = math.log((away + _DOUBT_BYTES) / (back + away + _DOUBT_BYTES))
        self._survival = None

    def state(self, now: float) -> list[tuple[float, float, float]]:
        """Return the counts by age class, and the seconds since each changed."""
        ages_s = [now - at for at in self._at]
        return list(zip(self._returned, self._stayed_away, ages_s, strict=True))

    def restore(self, counts: Iterable[tuple[float, float, float]], now: float) -> None:
        """Restore a result of `state`."""
        for age, (back, away, age_s) in zip(range(len(_AGES_S)), counts, strict=False):
            self._returned[age], self._stayed_away[age], self._at[age] = back, away, now - age_s
            self._count(self._returned, age, 0, now - age_s)
