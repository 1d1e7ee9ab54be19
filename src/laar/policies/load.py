"""Policies that look at load alone."""

from __future__ import annotations

import numpy as np

from laar.core.endpoints import Floats
from laar.core.interfaces import View

__all__ = ["LeastLoaded", "LoadAware"]


class LeastLoaded:
    """The fewest requests in flight, by the picker's own count."""

    def score(self, view: View) -> Floats:
        """Falls with every request in flight."""
        return 1.0 / (1.0 + view.in_flight)


class LoadAware:
    """llm-d's load-aware scorer: half for an idle queue, falling to nothing at the threshold.

    `0.5 * (1 - min(waiting, threshold) / threshold)`, from the engine's own queue as last scraped.
    An endpoint whose queue was never read counts as full, not as idle.

    Args:
        threshold: requests waiting at which the score reaches zero.
    """

    def __init__(self, threshold: float = 128.0) -> None:
        self._threshold = threshold

    def score(self, view: View) -> Floats:
        """Half of what is free of the threshold."""
        waiting = view.table.waiting[view.slots]
        known = np.where(np.isnan(waiting), self._threshold, waiting)
        scores: Floats = 0.5 * (1.0 - np.minimum(known, self._threshold) / self._threshold)
        return scores
