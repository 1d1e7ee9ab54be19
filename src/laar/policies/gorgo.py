"""GORGO's published score, in token equivalents."""

from __future__ import annotations

import numpy as np

from laar.core.cost import scores_of_costs
from laar.core.endpoints import Floats
from laar.core.interfaces import View
from laar.policies.gorgo_score import PUBLISHED_WEIGHTS, gorgo_score


class Gorgo:
    """`rtt_weight * rtt_ms + uncached_tokens + queue_weight * queued_tokens`, least first.

    Section 3 of the paper (arXiv 2602.11688, v3, 2026), with the weights it learned on its first
    day as defaults. Ties go to the picker's near-tie rule instead of the first in the list.

    Args:
        rtt_weight: tokens for a millisecond of round trip.
        queue_weight: uncached tokens that a queued token is worth.
    """

    def __init__(
        self,
        *,
        rtt_weight: float = PUBLISHED_WEIGHTS["rtt_weight"],
        queue_weight: float = PUBLISHED_WEIGHTS["queue_weight"],
    ) -> None:
        self._weights = {"rtt_weight": rtt_weight, "queue_weight": queue_weight}

    def score(self, view: View) -> Floats:
        """The cheapest scores one."""
        weights = view.weights or self._weights
        cost = gorgo_score(
            1000.0 * view.rtt_s,
            np.maximum(view.tokens - view.cached_tokens, 0.0),
            view.queued_tokens,
            weights["rtt_weight"],
            weights["queue_weight"],
        )
        return scores_of_costs(cost)
