"""Copies of KV blocks in slower memory than the device's, and the time to fetch them.

Blocks evicted from an engine's device may remain on its host, and beyond that on disk or at a peer.
Fetching one is assumed to take a fifth of the time to compute it from the host, and two fifths from
further away; vLLM's router assumes .2 to .7. So a prompt goes where fetching plus computing takes
the least time.

Caches evict the end of a prompt first, so its blocks are on the device, then on the host, then
further away.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping

HOST, FAR = 1, 2
"""Tiers of memory slower than the device's, which is tier 0."""

_SHARES = (0.2, 0.4)  # fetch time / compute time, from the host and from beyond it


def worth(behind: Mapping[int, int], blocks: array[int], found: int) -> float:
    """Return how many blocks could be computed in the time it takes to fetch the slower copies.

    Args:
        behind: the tiers of the blocks that are not on the device.
        blocks: the prompt's blocks.
        found: how many of them are held, in any memory.
    """
    if not behind:
        return 0.0

    def tier(at: int) -> int:
        return behind.get(blocks[at], 0)

    host = bisect_left(range(found), HOST, key=tier)
    far = bisect_left(range(found), FAR, lo=host, key=tier)
    return _SHARES[0] * (far - host) + _SHARES[1] * (found - far)
