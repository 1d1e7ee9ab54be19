"""llm-d's scheduling by predicted latency, for requests without objectives.

Built from its documentation and its chart's configuration (llm-d-router 0.10 and 0.11, "Latency
Predictor" and the plug-ins' readmes; 2026): a filter for endpoints that have nearly all of the
prompt cached, a second filter for endpoints that have most of it, then `latency-scorer`, whose
scores are the weights of a random draw. As in the chart, only TTFT is predicted; its settings for
streams also predict the time per output token, with a weight of 0.2.

llm-d predicts with gradient-boosted trees in sidecars. Here laar's engine model predicts, which
learns from the same answers and, unlike llm-d's, distinguishes the engines.
"""

from __future__ import annotations

import numpy as np

from laar.core.interfaces import View
from laar.core.policy import Policy
from laar.fleet.endpoints import Floats, Mask
from laar.policies.laar.pricing import inputs_of, price
from laar.policies.pickers import ShuffledMaxScore, WeightedRandom
from laar.speeds.engines import Engines

_LEAST_SCORE = 0.01  # so that even the worst candidate is drawn sometimes


class PredictedLatency:
    """Applies `prefix-cache-affinity-filter` twice, then `latency-scorer` without objectives.

    For each of the `thresholds` in turn, only the endpoints with at least that share of the prompt
    cached are kept. All are kept if there are none, or if their best predicted TTFT exceeds the
    others' by more than `max_ttft_penalty_ms`. If some of the kept endpoints are idle, only those
    are scored. The shortest prediction scores best; a prediction that is the same for all is
    ignored.
    """

    def __init__(
        self, thresholds: tuple[float, ...], max_ttft_penalty_ms: float, weights: tuple[float, ...]
    ) -> None:
        self._thresholds = thresholds
        self._penalty_s = max_ttft_penalty_ms / 1e3
        self._weights = weights

    def score(self, view: View) -> Floats:
        """Score by the predicted TTFT and the predicted time from the first token to the last."""
        priced = price(inputs_of(view, view.engines or Engines(view.table), "all"))
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
        affinity_threshold: share of the prompt for the second filter.
        max_ttft_penalty_ms: how much affinity may add to the TTFT.
        ttft_weight: weight of the TTFT.
        tpot_weight: weight of the answer after the first token.
        drawn: 1 to draw an endpoint with the scores as weights; 0 to choose the best.
    """
    rule = PredictedLatency(
        (strict_threshold, affinity_threshold), max_ttft_penalty_ms, (ttft_weight, tpot_weight)
    )
    picker = WeightedRandom() if drawn else ShuffledMaxScore()
    return Policy(name="llm-d-latency", scorers=[(rule, 1.0)], picker=picker)
