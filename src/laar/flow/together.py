"""Requests that begin with the same context leave the queue together (ContextPilot, algorithm 5).

The paper sorts a batch by search path, so that requests that share a region of the cache are served
in one go. Here requests come one by one, some in a hurry, and each endpoint has a cache of its own.
So the order by slack stays, and is only put off: an endpoint that has room gets the request that
shares most with its recent requests, as long as all others can afford that (`spare_s`).

In an overload slack alone makes every request late in turn, also those that could be served
cheaply. Then no objective counts, and cheap requests go first.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

K = TypeVar("K", bound=Hashable)

MAX_PASSED = 8
"""Requests that may go in a row before one that is late: it has no objective left to lose, but it
is not to wait for ever."""


class Together(Generic[K]):
    """Keys by the contexts that they begin with."""

    __slots__ = ("_by_hash",)

    def __init__(self) -> None:
        self._by_hash: dict[int, dict[K, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_hash)

    def put(self, key: K, context: Sequence[int]) -> None:
        """Adds a key."""
        for one in context:
            self._by_hash.setdefault(one, {})[key] = None

    def remove(self, key: K, context: Sequence[int]) -> None:
        """Takes a key out."""
        for one in context:
            keys = self._by_hash[one]
            del keys[key]
            if not keys:
                del self._by_hash[one]

    def nearest(self, contexts: Sequence[Sequence[int]]) -> K | None:
        """The first that came of those that share most with one of the contexts."""
        best, most = None, 0
        for context in contexts:
            for shared in range(len(context), most, -1):
                keys = self._by_hash.get(context[shared - 1])
                if keys is not None:
                    best, most = next(iter(keys)), shared
                    break
        return best


def spare_s(
    starts_s: NDArray[np.float64], work_s: NDArray[np.float64], now: float, servers: int
) -> float:
    """Seconds by which all requests that can keep their objective may wait; infinite for none.

    The request that must start first is served first, each for as long as its work takes. A request
    that cannot keep its objective even so does not count.

    Args:
        starts_s: float64[n], when each has to start at the latest.
        work_s: float64[n], for how long each is served.
        now: the moment.
        servers: how many are served at a time.
    """
    order = np.argsort(starts_s)
    work = work_s[order]
    left = starts_s[order] - now - (np.cumsum(work) - work) / servers
    kept = left[left >= 0.0]
    return float(kept.min()) if len(kept) else math.inf
