"""Copies of KV blocks in slower memory than the device's, and the time to fetch them.

Blocks evicted from an engine's device may remain on its host, and beyond that on disk or at a peer.
Fetching a block takes a fraction of the time to compute it. Until first tokens show how long it
takes at an endpoint, a fifth is assumed from the host and two fifths from further away. So a prompt
goes where fetching plus computing takes the least time.

Caches evict the end of a prompt first, so its blocks are on the device, then on the host, then
further away.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

HOST, FAR = 1, 2
"""Tiers of memory slower than the device's, which is tier 0."""

_SHARES = (0.2, 0.4)
"""Initial ratios of fetch time to compute time, for host memory and for the tiers beyond it; vLLM's
router assumes 0.2 to 0.7."""

_GAIN = 0.2
_LEAST, _MOST = 0.05, 5.0
"""Bounds on the learned factor: fetching takes 0.01 to 2 times as long as computing."""


class Tiers:
    """The blocks of which an endpoint has only slower copies, and the time to fetch them."""

    def __init__(self) -> None:
        self._behind: dict[int, dict[int, int]] = {}  # tiers by slot and block, except tier 0
        self.paces: dict[int, float] = {}
        """The learned factor on the time of fetching, by slot."""

    def __bool__(self) -> bool:
        return bool(self._behind)

    def note(self, slot: int, block: int, tier: int) -> None:
        """Record the fastest memory in which a slot has a block."""
        if tier:
            self._behind.setdefault(slot, {})[block] = tier
        elif slot in self._behind:
            self._behind[slot].pop(block, None)
            if not self._behind[slot]:
                del self._behind[slot]

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self._behind.pop(slot, None)
        self.paces.pop(slot, None)

    def fetched(self, slot: int, blocks: array[int], found: int) -> float:
        """Return how many blocks could be computed in the time it takes to fetch the slower copies.

        Args:
            slot: the endpoint.
            blocks: the prompt's blocks.
            found: how many of them the slot holds, in any memory.
        """
        behind = self._behind.get(slot)
        if not behind:
            return 0.0

        def tier(at: int) -> int:
            return behind.get(blocks[at], 0)

        host = bisect_left(range(found), HOST, key=tier)
        far = bisect_left(range(found), FAR, lo=host, key=tier)
        worth = _SHARES[0] * (far - host) + _SHARES[1] * (found - far)
        return worth * self.paces.get(slot, 1.0)

    def learn(self, slot: int, ratio: float, weight: float) -> None:
        """Learn from a prompt whose fetching took `ratio` times as long as expected.

        Args:
            slot: the endpoint.
            ratio: actual seconds / expected seconds.
            weight: expected share of the time that is spent fetching, in 0..1.
        """
        pace = self.paces.get(slot, 1.0)
        seen = min(_MOST, max(_LEAST, pace * ratio))
        self.paces[slot] = pace + _GAIN * weight * (seen - pace)
