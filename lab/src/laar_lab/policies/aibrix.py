"""AIBrix's prefix-cache policy, and the request count that it falls back on.

Taken from AIBrix v0.7.0 (`algorithms/prefix_cache.go`, e3e10f9, August 2026), whose code uses one
standard deviation while its readme says two; GORGO's evaluation used two.
"""

from __future__ import annotations

import numpy as np

from laar.core.interfaces import View
from laar.fleet.endpoints import Floats
from laar.policies.pickers import least, ranks


class LeastRequest:
    """Prefers the fewest requests: the larger of the last scraped number and laar's own count."""

    def score(self, view: View) -> Floats:
        """Rank by requests, breaking ties at random."""
        return ranks(least(_requests(view), view.rng))


class PrefixCache:
    """Prefers the longest matching prefix among endpoints that are not overloaded.

    If the running requests differ by more than `imbalance`, the least loaded is chosen. Otherwise
    the endpoints are sorted by match, then by running requests, and the first with some match and
    at most `mean + stdevs * sigma` running is chosen, or the least loaded if there is none.

    The load is the last scraped value, even if it is old, because that is part of the policy.

    Args:
        imbalance: largest difference in running requests that is not an imbalance.
        stdevs: how far above the mean an endpoint may be; 1 in AIBrix's code, 2 in its readme and
            in GORGO's baseline.
    """

    def __init__(self, *, imbalance: float = 8.0, stdevs: float = 1.0) -> None:
        self._imbalance = imbalance
        self._stdevs = stdevs

    def score(self, view: View) -> Floats:
        """Rank by the rule above."""
        running = np.nan_to_num(view.table.running[view.slots])
        fallback = least(_requests(view), view.rng)
        if running.max() - running.min() > self._imbalance:
            return ranks(fallback)
        limit = running.mean() + self._stdevs * running.std()
        order = sorted(fallback, key=lambda i: (-view.cached_tokens[i], running[i]))
        for first in order:
            if view.cached_tokens[first] > 0 and running[first] <= limit:
                return ranks([first, *(i for i in order if i != first)])
        return ranks(fallback)


def _requests(view: View) -> Floats:
    scraped = np.nan_to_num(view.table.running[view.slots])
    requests: Floats = np.maximum(scraped, view.in_flight)
    return requests
