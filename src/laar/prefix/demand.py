"""The demand for each prefix, which determines the value of another copy of it.

A prefix that many requests share, such as a long system prompt, is prefilled once at each endpoint
that serves some of the requests. The first request there pays for all later ones, so the value of
a copy depends on their number, which is estimated by the number of recent requests (Lindy's law: a
prefix that was requested often keeps being requested).

Requests are counted only at a few depths of the prompt, ever further apart, so that each takes at
most 24 look-ups, whatever its length. Counts fade with the time constant `HORIZON_S`.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from laar.prefix.blocks import ENDS, Chain, blocks_in

HORIZON_S = 60.0
"""Time constant in seconds of past requests, and how far ahead requests are expected: about as long
as a popular prefix stays in the cache of a busy endpoint."""

_FORGOTTEN_S = 3.0 * HORIZON_S  # by then a single request has faded to a twentieth

MAX_PREFIXES = 65_536
"""Maximum number of prefixes remembered (about 12 MB); the least recently requested is dropped."""

_PLACES_BYTES = (256, 512, *(scale << power for power in range(9, 20) for scale in (2, 3)))
PLACES = list(map(blocks_in, _PLACES_BYTES))
"""Depths at which to count, in blocks, up to 1.5 MiB; each is 1.3 to 2 times the previous one."""
_ENDS = np.array([ENDS[block] for block in PLACES], np.float64)


class PrefixDemand:
    """Counts requests by prefix."""

    def __init__(self) -> None:
        # Reading the first key of a `dict` skips all deleted before it, one by one.
        self._seen: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def note(self, chain: Chain, now: float) -> None:
        """Record that a request with this prompt was sent to some endpoint."""
        seen, hashes, end = self._seen, chain.hashes, len(chain.hashes)
        for block in PLACES:
            if block > end:
                break
            key = hashes[block - 1]
            count, at = seen.pop(key, (0.0, now))  # popped and reinserted as the newest
            seen[key] = count * math.exp(min(0.0, at - now) / HORIZON_S) + 1.0, now
        for _ in range(min(len(seen), 2 * len(PLACES))):  # after a pause, all are forgotten
            if len(seen) <= MAX_PREFIXES and next(iter(seen.values()))[1] >= now - _FORGOTTEN_S:
                break
            seen.popitem(last=False)

    def expected(
        self, chain: Chain, now: float
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        """Return depths in the prompt, as shares of it, and how many requests share each.

        No known request shares more than the last depth. Return None if none shares any of it.
        """
        seen, hashes, end = self._seen, chain.hashes, len(chain.hashes)
        counts = []
        for block in PLACES:
            if block > end:
                break
            found = seen.get(hashes[block - 1])
            if found is None:
                break
            counts.append(found[0] * math.exp(min(0.0, found[1] - now) / HORIZON_S))
        if not counts:
            return None
        return _ENDS[: len(counts)] / max(chain.total_bytes, 1), np.array(counts)
