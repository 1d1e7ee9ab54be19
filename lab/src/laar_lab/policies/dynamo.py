"""The sum that Dynamo's router minimizes, as does Ray Serve's `KVAwareRouter` on top of it.

Built from their documentation (Dynamo 1.6, "Router Operations" and "Configuration and Tuning"; Ray
Serve LLM 2.60; 2026): blocks to prefill times a weight, plus blocks being decoded; the lowest sum
wins. Here, tokens replace blocks, and laar's prefix index and counts replace theirs.
"""

from __future__ import annotations

import numpy as np

from laar.core.interfaces import View
from laar.fleet.endpoints import Floats
from laar.policies.pickers import least, ranks


class Dynamo:
    """Prefers the least `overlap_weight * (uncached + prefills in flight) + contexts in flight`.

    Contexts are the prompts in flight. The documentation does not say whether a block that two of
    them share is counted once or twice. `shared_weight` decides: it is the weight of tokens that
    were cached when the request was sent. 1 counts them for each request, 0 only for the request
    that computed them.

    Args:
        overlap_weight: weight of a token to prefill relative to one being decoded.
        shared_weight: weight of a token in flight that was cached.
    """

    def __init__(self, *, overlap_weight: float = 1.0, shared_weight: float = 1.0) -> None:
        self._overlap_weight = overlap_weight
        self._shared_weight = shared_weight

    def score(self, view: View) -> Floats:
        """Rank by the sum, breaking ties at random."""
        table, slots = view.table, view.slots
        prefill = view.tokens - view.cached_tokens + table.prefill_tokens[slots]
        computed = np.minimum(table.queued_uncached_tokens[slots], view.queued_tokens)
        contexts = computed + self._shared_weight * (view.queued_tokens - computed)
        return ranks(least(self._overlap_weight * prefill + contexts, view.rng))
