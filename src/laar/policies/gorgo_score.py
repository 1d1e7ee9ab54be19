"""GORGO's published score: network, prefill and queue in one number of token equivalents.

    score = rtt_weight * rtt_ms + uncached_tokens + queue_weight * queued_tokens

The weight of an uncached token is pinned to 1, which fixes the unit; ``rtt_weight`` is tokens per
millisecond and ``queue_weight`` has none. The round trip is in milliseconds: the authors' first
version had seconds here, which makes the term a thousand times too small and loses to random
routing.

laar's own cost is this with a model's seconds per token in front and a P(correct) below; this
function is for comparison and for the policy of that name.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PUBLISHED_WEIGHTS = {"rtt_weight": 0.276, "queue_weight": 0.5}
"""Learned by the authors on 5 April. The second sits on the upper edge of their box [0.05, 0.5]."""


def gorgo_score(
    rtt_ms: npt.NDArray[np.float64],
    uncached_tokens: npt.NDArray[np.float64],
    queued_tokens: npt.NDArray[np.float64],
    rtt_weight: float,
    queue_weight: float,
) -> npt.NDArray[np.float64]:
    """Token equivalents for each endpoint, shape ``(n,)``; the lowest is chosen.

    Args:
        rtt_ms: smoothed round trip; NaN (unknown) gives NaN, to be decided by the caller.
        uncached_tokens: prompt tokens that the endpoint probably does not hold.
        queued_tokens: prompt tokens sent there and not yet finished, without this request.
        rtt_weight: tokens per millisecond.
        queue_weight: uncached tokens that one queued token is worth.
    """
    return rtt_weight * rtt_ms + uncached_tokens + queue_weight * queued_tokens
