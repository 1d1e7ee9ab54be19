"""Copies of KV blocks in memory that engines do not compute from, and the price of fetching them.

Blocks that left an engine's device may be on its host, and behind that on disk or at a peer. To
fetch a block takes a part of the time to compute it: a fifth from the host, two fifths from
further away, until first tokens show how long it takes at an endpoint. So a prompt goes where
fetching and computing together take least.

Caches let the end of a prompt go first, so its blocks are on the device, then on the host, then
further away.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

HOST, FAR = 1, 2
"""Tiers behind the device's memory, which is 0."""

_SHARES = (0.2, 0.4)
"""Seconds to fetch, by seconds to compute, at first; what vLLM's router takes for host and others
is .2 to .7."""

_GAIN = 0.2
_LEAST, _MOST = 0.05, 5.0
"""Fetching is no faster than a hundredth of computing, and twice as slow at most."""


class Tiers:
    """Which blocks have only slower copies, by endpoint, and how long fetching takes there."""

    def __init__(self) -> None:
        self._behind: dict[int, dict[int, int]] = {}  # by slot: tiers by block, for those not in 0
        self._paces: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._behind)

    def note(self, slot: int, block: int, tier: int) -> None:
        """Note the fastest memory in which a slot has a block."""
        if tier:
            self._behind.setdefault(slot, {})[block] = tier
        elif slot in self._behind:
            self._behind[slot].pop(block, None)
            if not self._behind[slot]:
                del self._behind[slot]

    def drop(self, slot: int) -> None:
        """Forget a slot: its endpoint left."""
        self._behind.pop(slot, None)
        self._paces.pop(slot, None)

    def fetched(self, slot: int, blocks: array[int], found: int) -> float:
        """Return how many blocks could be computed while the slower of a slot's are fetched.

        Args:
            slot: the endpoint.
            blocks: a prompt's.
            found: how many of them it has, in any memory.
        """
        behind = self._behind.get(slot)
        if not behind:
            return 0.0

        def tier(at: int) -> int:
            return behind.get(blocks[at], 0)

        host = bisect_left(range(found), HOST, key=tier)
        far = bisect_left(range(found), FAR, lo=host, key=tier)
        worth = _SHARES[0] * (far - host) + _SHARES[1] * (found - far)
        return worth * self._paces.get(slot, 1.0)

    def learn(self, slot: int, ratio: float, weight: float) -> None:
        """Learn from a prompt whose fetching took `ratio` times as long as expected.

        Args:
            slot: the endpoint.
            ratio: seconds by expected seconds.
            weight: in 0..1; the share of the time that fetching should have taken.
        """
        pace = self._paces.get(slot, 1.0)
        seen = min(_MOST, max(_LEAST, pace * ratio))
        self._paces[slot] = pace + _GAIN * weight * (seen - pace)
