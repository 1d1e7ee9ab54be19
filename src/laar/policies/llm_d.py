"""llm-d's scorers, its default profile of three of them, and the profile its guide recommends.

The scorers for prefix, queue depth and KV-cache use, and the prefix-cache affinity filter, are
based on llm-d-router v0.10.0 and 066c20e (August 2026).

`llm_d` is the profile of the binary and of the chart: queue, KV-cache use and prefix with the
weights 2, 2 and 3. Its picker shuffles and takes the maximum, so ties are broken at random. Since
v0.9, a match is capped at 131,072 tokens; before that, at 256 blocks of 16 tokens.

The "optimized baseline" guide ("sticky until saturated") combines a filter, `StickyUntilSaturated`,
which keeps the endpoints that hold most of the prompt while they are not much slower than the
others, and a scorer, `FewestTokens`, for the work ahead.

An endpoint that was never scraped gets the worst score, since unknown does not mean idle.
"""

from __future__ import annotations

import numpy as np

from laar.core.interfaces import View
from laar.core.policy import Policy
from laar.fleet.endpoints import Floats, Mask
from laar.policies.pickers import ShuffledMaxScore, least, ranks


class QueueDepth:
    """`queue-scorer`: waiting requests, scaled between the shortest and the longest queue.

    The shortest queue of the candidates scores 1, the longest 0; all score 1 if they are equal.
    """

    def score(self, view: View) -> Floats:
        """Score by the last scrape of each engine."""
        return _stretched(view.table.waiting[view.slots])


class KvCacheUtilization:
    """`kv-cache-utilization-scorer`: the share of the KV cache that is free."""

    def score(self, view: View) -> Floats:
        """Score by the last scrape of each engine."""
        usage = view.table.kv_usage[view.slots]
        return 1.0 - np.where(np.isnan(usage), 1.0, usage)


class PrefixCacheMatch:
    """`prefix-cache-scorer`: the share of the prompt that matches.

    Args:
        max_match_tokens: cap on the match.
    """

    def __init__(self, *, max_match_tokens: float = 131_072.0) -> None:
        self._max_match_tokens = max_match_tokens

    def score(self, view: View) -> Floats:
        """Score by laar's prefix index."""
        matched = np.minimum(view.cached_tokens, self._max_match_tokens)
        return matched / np.maximum(view.tokens, 1.0)


def llm_d(
    *,
    queue_weight: float = 2.0,
    kv_weight: float = 2.0,
    prefix_weight: float = 3.0,
    max_match_tokens: float = 131_072.0,
) -> Policy:
    """Return llm-d's default profile."""
    return Policy(
        name="llm-d",
        scorers=[
            (QueueDepth(), queue_weight),
            (KvCacheUtilization(), kv_weight),
            (PrefixCacheMatch(max_match_tokens=max_match_tokens), prefix_weight),
        ],
        picker=ShuffledMaxScore(),
    )


def _stretched(requests: Floats) -> Floats:
    """Scale the minimum to 1 and the maximum to 0; unknown values become the maximum plus one."""
    most = 1.0 if np.isnan(requests).all() else float(np.nanmax(requests)) + 1.0
    known = np.where(np.isnan(requests), most, requests)
    span = float(known.max() - known.min())
    return (known.max() - known) / span if span else np.ones(len(known))


class FewestTokens:
    """Prefers the fewest uncached tokens waiting or in prefill, including this prompt's."""

    def score(self, view: View) -> Floats:
        """Rank by uncached tokens; break ties at random."""
        own = np.maximum(view.tokens - view.cached_tokens, 0.0)
        return ranks(least(view.table.prefill_tokens[view.slots] + own, view.rng))


class StickyUntilSaturated:
    """Keeps the endpoints that hold the prompt's prefix, unless they are too slow.

    Endpoints that hold `affinity_threshold` of the prompt or more are sticky. Only they are kept,
    unless the best of them is expected to answer `max_ttft_penalty_ms` later than the best of the
    others. A first token is expected after the uncached tokens waiting or in prefill, processed at
    `prefill_tokens_per_s`; a prompt's tokens count until the first byte of its answer.

    Args:
        affinity_threshold: share of the prompt that makes an endpoint sticky.
        max_ttft_penalty_ms: maximum delay that stickiness may cost; 0 for no limit.
        prefill_tokens_per_s: `peakPrefillThroughput`. The default is for a 32B model on two
            H100s; the guide says to measure it for each fleet. 0 uses the endpoint's speed as
            estimated by laar.
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

    def keep(self, view: View) -> Mask:
        """Return the sticky endpoints, or all if there are none or they are too slow."""
        sticky: Mask = view.cached_tokens / np.maximum(view.tokens, 1.0) >= self._threshold
        if sticky.any() and not sticky.all() and not self._breaks(view, sticky):
            return sticky
        return np.ones(len(sticky), np.bool_)

    def _breaks(self, view: View, sticky: Mask) -> bool:
        if self._exploration and view.rng.random() < self._exploration:
            return True
        ahead = view.table.prefill_tokens[view.slots]
        ttft_s = ahead / self._rate if self._rate else ahead * view.seconds_per_token
        late_s = float(ttft_s[sticky].min() - ttft_s[~sticky].min())
        return bool(self._penalty_s) and late_s > self._penalty_s


class Label:
    """Keeps the endpoints with a label, like llm-d's `label-selector-filter` for one label.

    Args:
        label: key of the label.
        value: required value; empty means any.
    """

    def __init__(self, *, label: str, value: str = "") -> None:
        self._label, self._value = label, value

    def keep(self, view: View) -> Mask:
        """Return the candidates with the label."""
        by_slot, label = view.table.by_slot, self._label
        found = [by_slot[slot].labels.get(label) for slot in view.slots.tolist()]
        return np.array([own is not None and self._value in ("", own) for own in found])
