"""llm-d's default profile: queue, KV-cache use and prefix, weights 2, 2 and 3.

Its picker shuffles and takes the maximum, so ties go to chance. Its prefix scorer matches 256
blocks of 16 tokens at most: longer common prefixes all look the same to it.
"""

from __future__ import annotations

import numpy as np

from laar.core.endpoints import Floats
from laar.core.interfaces import View

__all__ = ["LlmDDefault"]


class LlmDDefault:
    """`2 * queue + 2 * kv + 3 * prefix`, each in 0..1.

    `queue` stretches the waiting requests between the least and the most over the candidates, all 1
    when they are equal; `kv` is the free share of the KV cache; `prefix` the matched share of the
    prompt. What was never scraped counts as the worst.

    Args:
        max_match_tokens: what the prefix match is capped at.
    """

    def __init__(
        self,
        *,
        queue_weight: float = 2.0,
        kv_weight: float = 2.0,
        prefix_weight: float = 3.0,
        max_match_tokens: float = 4096.0,
    ) -> None:
        self._weights = (queue_weight, kv_weight, prefix_weight)
        self._max_match_tokens = max_match_tokens

    def score(self, view: View) -> Floats:
        """The weighted sum; wrap it in `ByChance` for llm-d's ties."""
        queue, kv, prefix = self._weights
        waiting = view.table.waiting[view.slots]
        most = 1.0 if np.isnan(waiting).all() else float(np.nanmax(waiting)) + 1.0
        waiting = np.where(np.isnan(waiting), most, waiting)
        span = float(waiting.max() - waiting.min())
        queue_score = (waiting.max() - waiting) / span if span else np.ones(len(waiting))
        usage = view.table.kv_usage[view.slots]
        kv_score = 1.0 - np.where(np.isnan(usage), 1.0, usage)
        matched = np.minimum(view.cached_tokens, self._max_match_tokens)
        prefix_score = matched / np.maximum(view.tokens, 1.0)
        scores: Floats = queue * queue_score + kv * kv_score + prefix * prefix_score
        return scores
