"""Policies that look at load alone."""

from __future__ import annotations

import numpy as np

from laar.core.endpoints import Floats
from laar.core.interfaces import View
from laar.policies.ranking import ranks


class LeastLoaded:
    """The fewest requests in flight, by the picker's own count."""

    def score(self, view: View) -> Floats:
        """Score lower with every request in flight."""
        return 1.0 / (1.0 + view.in_flight)


class LoadAware:
    """llm-d's load-aware scorer: half for an idle queue, falling to nothing at the threshold.

    `0.5 * (1 - min(waiting, threshold) / threshold)`, from the engine's own queue as last scraped.
    An endpoint whose queue was never read counts as full, not as idle.

    Args:
        threshold: requests waiting at which the score reaches zero.
    """

    def __init__(self, *, threshold: float = 128.0) -> None:
        self._threshold = threshold

    def score(self, view: View) -> Floats:
        """Half of the free share of the threshold."""
        waiting = view.table.waiting[view.slots]
        known = np.where(np.isnan(waiting), self._threshold, waiting)
        scores: Floats = 0.5 * (1.0 - np.minimum(known, self._threshold) / self._threshold)
        return scores


class PowerOfTwo:
    """Prefers, of two candidates drawn by chance, the one with fewer requests in flight.

    The default of Ray Serve's router and `power_of_two` of SMG and vLLM router (2026); after
    Mitzenmacher, "The power of two choices in randomized load balancing" (2001).
    """

    def score(self, view: View) -> Floats:
        """Ranks: the winner, the loser, and the rest by chance."""
        order = list(range(len(view.slots)))
        view.rng.shuffle(order)
        order[:2] = sorted(order[:2], key=lambda i: view.in_flight[i])
        return ranks(order)
