"""What a cache pushes out is sometimes asked for again: how often, for each endpoint.

A prompt that is read takes room in its endpoint's cache, and where that is full, something else
leaves. That costs nothing where nobody comes back for it, and a whole prompt where a conversation
goes on. Which of the two it is differs by endpoint (fast ones fill, slow ones have room), by load
and by hour, so it is counted: of the text that each endpoint took in lately, how much that it had
held was asked for later, when no endpoint held it any more.

A list of ghosts tells: for the last place of each prompt's coarse grid, which endpoint it was sent
to, and how much that one had taken in by then. What comes back after the cache was filled more than
`NEAR` times does not count: a little more room would not have saved it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from laar.prefix.blocks import GROWING, Chain, Grid
from laar.prefix.demand import PLACES_BYTES

__all__ = ["Evictions"]

MEMORY_S = 120.0
"""How far back is looked: a few times as long as a turn of a conversation takes."""

MAX_PROMPTS = 65_536
"""Prompts remembered, some 10 MB; the oldest go first, as soon as they can't count any more."""

MAX_SHARE = 0.75
"""What comes back pushes out something in turn, 1 / (1 - share) times in all: four at most."""

NEAR = 2.0
"""Times its size that a cache may take in before a prompt is asked for again, for that to count.

What the last bit of room is worth shows in what had only just left, not in all that ever did."""

_DOUBT_BYTES = 100_000.0  # taken in beside what was seen: a few prompts prove nothing
_LEAST_BYTES = 1024  # missed of a prompt; a smaller part may be its answer
_MOST_FADED = 50.0  # times the memory, until the sums are taken anew


@dataclass(frozen=True, slots=True)
class _Sent:
    """The latest prompt that ended or passed at a place."""

    slot: int
    total_bytes: int
    taken_by_then: float


class Evictions:
    """Counts what comes back. Endpoints are small integers, the slots.

    Args:
        grid: the grid of the chains that come in.
    """

    def __init__(self, grid: Grid = GROWING) -> None:
        self._places = [bisect_right(grid.ends, place) - 1 for place in PLACES_BYTES]
        self._last: dict[int, _Sent] = {}
        self._sums = np.zeros((3, 0))  # taken in lately, of it asked for again, ever taken in
        self._from_s, self._scale = 0.0, 1.0

    def __len__(self) -> int:
        return len(self._last)

    def resize(self, slots: int) -> None:
        """Makes room for more slots; never fewer."""
        more = slots - self._sums.shape[1]
        if more > 0:
            self._sums = np.concatenate((self._sums, np.zeros((3, more))), axis=1)

    def note(
        self,
        slot: int,
        chain: Chain,
        now: float,
        *,
        held: int,
        anywhere_bytes: float,
        capacity_bytes: Callable[[int], float],
    ) -> None:
        """A prompt is sent to a slot.

        Args:
            slot: the endpoint.
            chain: the prompt.
            now: the moment, seconds.
            held: blocks of it that this endpoint is believed to hold.
            anywhere_bytes: of it that the one that holds most is believed to hold.
            capacity_bytes: of text that a slot's cache holds.
        """
        known = bisect_right(self._places, len(chain))
        if not known or slot >= self._sums.shape[1]:
            return
        taken, again, ever = self._sums
        weight = self._weight(now)
        hashes, total = chain.hashes, chain.total_bytes
        for place in reversed(self._places[:known]):
            sent = self._last.get(hashes[place - 1])
            if sent is not None:
                missed = min(sent.total_bytes, total) - anywhere_bytes
                since = ever[sent.slot] - sent.taken_by_then
                if missed >= _LEAST_BYTES and 0.0 <= since <= NEAR * capacity_bytes(sent.slot):
                    again[sent.slot] += weight * missed
                break
        fresh = total - chain.bytes_of(held)
        taken[slot] += weight * fresh
        ever[slot] += fresh
        key = hashes[self._places[known - 1] - 1]
        self._last.pop(key, None)  # so that it is the newest again
        self._last[key] = _Sent(slot, total, float(ever[slot]))
        for key, sent in list(islice(self._last.items(), 2)):
            since = ever[sent.slot] - sent.taken_by_then
            if len(self._last) > MAX_PROMPTS or since > NEAR * capacity_bytes(sent.slot):
                del self._last[key]

    def again(self) -> npt.NDArray[np.float64]:
        """Of what each slot's cache pushes out, the share that is asked for again, 0 to 0.75."""
        taken, again, _ = self._sums
        share: npt.NDArray[np.float64] = again / (taken + _DOUBT_BYTES * self._scale)
        return np.minimum(MAX_SHARE, share)

    def drop(self, slot: int) -> None:
        """Forgets a slot's counts: its endpoint left."""
        if slot < self._sums.shape[1]:
            self._sums[:, slot] = 0.0

    def _weight(self, now: float) -> float:
        """Of what happens now: the sums are kept as of one moment, so that all fade by one."""
        if not math.isfinite(now):
            return self._scale
        passed_s = now - self._from_s
        if not 0.0 <= passed_s < _MOST_FADED * MEMORY_S:
            # To what they are now; where the clock was set back, to what they were at the last.
            back = max(0.0, passed_s) / MEMORY_S
            self._sums[:2] *= math.exp(-min(700.0, back)) if back else 1.0 / self._scale
            self._from_s, passed_s = now, 0.0
        self._scale = math.exp(passed_s / MEMORY_S)
        return self._scale
