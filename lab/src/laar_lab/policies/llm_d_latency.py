"""llm-d's scheduling by predicted latency, for requests without objectives.

By its documentation and its chart's configuration (llm-d-router 0.10 and 0.11, "Latency Predictor"
and the plug-ins' readmes; 2026): a filter for endpoints that hold nearly all of the prompt, one for
those that hold most of it, then `latency-scorer`, whose scores are the weights of a random draw.
As the chart has it, only first tokens are predicted; its settings for streams predict the time of
an output token as well, and weigh it by 0.2.

llm-d's predictions come from gradient-boosted trees in sidecars. Here they come from laar's model
of the engines, which learns from the same answers and knows the engines apart, as llm-d's does not.
"""

from __future__ import annotations

import numpy as np

from laar.core.cost import CostWeights
from laar.core.endpoints import Floats, Mask
from laar.core.engines import Engines
from laar.core.interfaces import View
from laar.core.policy import Policy
from laar.policies.laar.pricing import inputs_of, price
from laar.policies.pickers import ShuffledMaxScore, WeightedRandom

_LEAST_SCORE = 0.01  # the worst of the candidates is drawn now and then
_WEIGHTS = CostWeights()


class PredictedLatency:
    """`prefix-cache-affinity-filter`, twice, and `latency-scorer` where nothing has an objective.

    The endpoints that hold a share of the prompt or more alone stay, if there are any, unless the
    best of them is predicted to answer `max_ttft_penalty_ms` later than the best of the others; so
    for each of the `thresholds` in turn. Where some that stay are idle, only these score. The least
    predicted seconds score best; a prediction that is the same for all has no weight.
    """

    def __init__(
        self, thresholds: tuple[float, ...], max_ttft_penalty_ms: float, weights: tuple[float, ...]
    ) -> None:
        self._thresholds = thresholds
        self._penalty_s = max_ttft_penalty_ms / 1e3
        self._weights = weights

    def score(self, view: View) -> Floats:
        """Score by predicted first tokens and the seconds of an answer after them."""
        priced = price(inputs_of(view, view.engines or Engines(view.table), _WEIGHTS))
        kept = self._kept(view, priced.ttft_s)
        idle = kept & (view.in_flight == 0.0)
        kept = idle if idle.any() else kept
        total, weights = np.zeros(len(kept)), 0.0
        predicted = (priced.ttft_s, priced.latency_s - priced.ttft_s)
        for weight, seconds in zip(self._weights, predicted, strict=True):
            lowest, highest = float(seconds[kept].min()), float(seconds[kept].max())
            if weight > 0.0 and highest > lowest:
                total += weight * (highest - seconds) / (highest - lowest)
                weights += weight
        scores = total / weights if weights else np.ones(len(kept))
        return np.where(kept, np.clip(scores, _LEAST_SCORE, 1.0), 0.0)

    def _kept(self, view: View, ttft_s: Floats) -> Mask:
        share = view.cached_tokens / np.maximum(view.tokens, 1.0)
        kept = np.ones(len(share), np.bool_)
        for threshold in self._thresholds:
            holds = kept & (share >= threshold)
            rest = kept & ~holds
            if holds.any() and rest.any():
                late_s = ttft_s[holds].min() - ttft_s[rest].min()
                kept = holds if late_s <= self._penalty_s else kept
        return kept


def llm_d_latency(
    *,
    strict_threshold: float = 0.99,
    affinity_threshold: float = 0.8,
    max_ttft_penalty_ms: float = 5000.0,
    ttft_weight: float = 0.8,
    tpot_weight: float = 0.0,
    drawn: float = 1.0,
) -> Policy:
    """Return the profile of llm-d's chart.

    Args:
        strict_threshold: share of the prompt for the first filter.
        affinity_threshold: the same for the second.
        max_ttft_penalty_ms: what affinity may cost.
        ttft_weight: weight of the first token.
        tpot_weight: weight of the answer after it.
        drawn: 1 where scores are the weights of a draw; 0 where the best one serves.
    """
    rule = PredictedLatency(
        (strict_threshold, affinity_threshold), max_ttft_penalty_ms, (ttft_weight, tpot_weight)
    )
    picker = WeightedRandom() if drawn else ShuffledMaxScore()
    return Policy(name="llm-d-latency", scorers=[(rule, 1.0)], picker=picker)
