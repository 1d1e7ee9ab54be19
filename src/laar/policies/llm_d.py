"""llm-d's default profile, and the one its guide recommends.

Read in llm-d-router v0.10.0 and at 066c20e (August 2026): the scorers for prefix, queue depth,
KV-cache use and token load, and the prefix-cache affinity filter.

`LlmDDefault` is the profile of the binary and of the chart: queue, KV-cache use and prefix with the
weights 2, 2 and 3. Its picker shuffles and takes the maximum, so ties go to chance. A match counts
up to 131,072 tokens since v0.9; before, 256 blocks of 16 tokens.

`LlmDGuide` is the "optimized baseline" guide ("sticky until saturated"): a filter that keeps the
endpoints which hold most of the prompt while they are not much slower than the others, and among
what it keeps the fewest tokens to prefill.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laar.core.endpoints import Floats
from laar.core.interfaces import View
from laar.policies.ranking import least, ranks

__all__ = ["LlmDDefault", "LlmDGuide"]


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
        max_match_tokens: float = 131_072.0,
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


class LlmDGuide:
    """Sticky until saturated.

    Endpoints that hold `affinity_threshold` of the prompt or more are sticky. They alone are
    candidates, unless the best of them is expected to answer `max_ttft_penalty_ms` later than the
    best of the others. A first token is expected after the uncached tokens that wait or prefill
    there, at `prefill_tokens_per_s`; tokens leave that sum with the first byte of their answer. Of
    the candidates the one with the fewest such tokens, this prompt's included, is taken.

    Args:
        affinity_threshold: share of the prompt that makes an endpoint sticky.
        max_ttft_penalty_ms: what stickiness may cost; 0 for any price.
        prefill_tokens_per_s: `peakPrefillThroughput`. The default is that of a 32B model on two
            H100; the guide has it measured for each fleet, and 0 does that: the speed by which
            laar prices a token there.
        exploration_probability: share of requests that are not filtered.
    """

    def __init__(
        self,
        *,
        affinity_threshold: float = 0.8,
        max_ttft_penalty_ms: float = 18_000.0,
        prefill_tokens_per_s: float = 15_928.0,
        exploration_probability: float = 0.0,
    ) -> None:
        self._threshold = affinity_threshold
        self._penalty_s = max_ttft_penalty_ms / 1e3
        self._rate = prefill_tokens_per_s
        self._exploration = exploration_probability

    def score(self, view: View) -> Floats:
        """Ranks, by the rule above; ties go to chance."""
        ahead = view.table.prefill_tokens[view.slots]
        load = ahead + np.maximum(view.tokens - view.cached_tokens, 0.0)
        sticky = view.cached_tokens / np.maximum(view.tokens, 1.0) >= self._threshold
        if sticky.any() and not sticky.all() and not self._breaks(view, ahead, sticky):
            load = np.where(sticky, load, np.inf)
        return ranks(least(load, view.rng))

    def _breaks(self, view: View, ahead: Floats, sticky: NDArray[np.bool_]) -> bool:
        if self._exploration and view.rng.random() < self._exploration:
            return True
        ttft_s = ahead / self._rate if self._rate else ahead * view.seconds_per_token
        late_s = float(ttft_s[sticky].min() - ttft_s[~sticky].min())
        return bool(self._penalty_s) and late_s > self._penalty_s
