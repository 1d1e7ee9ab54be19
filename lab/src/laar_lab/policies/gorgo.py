"""GORGO's published score: network, prefill and queue in one number of token equivalents.

Section 3 of the paper (arXiv 2602.11688, v3, 2026). The weight of an uncached token is fixed at 1,
which sets the unit; ``rtt_weight`` is in tokens per millisecond and ``queue_weight`` has no unit.
The round trip is in milliseconds: the authors' first version used seconds, which makes the term a
thousand times too small and loses to random routing.
"""

from __future__ import annotations

import numpy as np

from laar.core.cost import scores_of_costs
from laar.core.interfaces import View
from laar.fleet.endpoints import Floats

PUBLISHED_WEIGHTS = {"rtt_weight": 0.276, "queue_weight": 0.5}
"""Found by the authors on 5 April. `queue_weight` is at the upper end of its range [0.05, 0.5]."""


class Gorgo:
    """`rtt_weight * rtt_ms + uncached_tokens + queue_weight * queued_tokens`; lowest is best.

    Ties are broken by the picker's near-tie rule, not by taking the first in the list.

    Args:
        rtt_weight: tokens per millisecond of round trip.
        queue_weight: uncached tokens per queued token.
    """

    def __init__(
        self,
        *,
        rtt_weight: float = PUBLISHED_WEIGHTS["rtt_weight"],
        queue_weight: float = PUBLISHED_WEIGHTS["queue_weight"],
    ) -> None:
        self._weights = {"rtt_weight": rtt_weight, "queue_weight": queue_weight}

    def score(self, view: View) -> Floats:
        """Score by cost; the cheapest endpoint gets 1."""
        weights = self._weights
        cost = gorgo_score(
            1000.0 * view.rtt_s,
            np.maximum(view.tokens - view.cached_tokens, 0.0),
            view.queued_tokens,
            weights["rtt_weight"],
            weights["queue_weight"],
        )
        return scores_of_costs(cost)


def gorgo_score(
    rtt_ms: Floats,
    uncached_tokens: Floats,
    queued_tokens: Floats,
    rtt_weight: float,
    queue_weight: float,
) -> Floats:
    """Return the token equivalents for each endpoint, shape ``(n,)``; the lowest is chosen.

    Args:
        rtt_ms: smoothed round trip; NaN (unknown) gives NaN, for the caller to handle.
        uncached_tokens: prompt tokens that the endpoint probably has not cached.
        queued_tokens: prompt tokens of unfinished requests there, without this one.
        rtt_weight: tokens per millisecond.
        queue_weight: uncached tokens per queued token.
    """
    return rtt_weight * rtt_ms + uncached_tokens + queue_weight * queued_tokens
