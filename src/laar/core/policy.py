"""A policy: weighted scorers, and whether it knows of earlier attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from laar.core.cost import CostWeights, expected_time, scores_of_costs
from laar.core.endpoints import Floats
from laar.core.interfaces import Scorer, View

__all__ = ["ExpectedTime", "Policy"]


class ExpectedTime:
    """Scores by the one cost: expected seconds to a correct answer (overview section 1).

    Args:
        weights: of the cost's terms.
        use_prefix: leave out what is believed to be cached, of the prompt and of what is queued;
            off for LAAR as published.
        use_base: count `base_s`; off for LAAR as published.
        strict_retries: whatever the candidates' costs, one whose model was tried less often comes
            first. Off for LAAR as published, where a penalty of 100 can be outbid.
    """

    def __init__(
        self,
        weights: CostWeights,
        *,
        use_prefix: bool = True,
        use_base: bool = True,
        strict_retries: bool = True,
    ) -> None:
        self.weights = weights
        self._use_prefix = use_prefix
        self._use_base = use_base
        self._strict_retries = strict_retries
        self._tuned: Mapping[str, float] | None = None
        self._live = weights

    def _weights(self, view: View) -> CostWeights:
        """The tuner's where it has a say in this decision; made anew only when they change."""
        tuned = view.weights
        if tuned is None:
            return self.weights
        if tuned is not self._tuned:
            self._tuned, self._live = tuned, replace(self.weights, **tuned)
        return self._live

    def score(self, view: View) -> Floats:
        """Prices the candidates, leaves the terms in the view, and turns costs into scores."""
        tokens, queued = view.tokens, view.queued_tokens
        if self._use_prefix:
            tokens = tokens - view.cached_tokens
            queued = view.table.queued_uncached_tokens[view.slots]
        view.terms = expected_time(
            self._weights(view),
            rtt_s=view.rtt_s,
            base_s=view.base_s if self._use_base else view.base_s * 0.0,
            seconds_per_token=view.seconds_per_token,
            uncached_tokens=tokens,
            queued_tokens=queued,
            in_flight=view.in_flight,
            probability=view.probability,
            times_tried=view.times_tried,
            strict_retries=self._strict_retries,
            answers=view.answers,
            pace=view.pace,
            typical_s=view.typical_s,
        )
        return scores_of_costs(view.terms.cost_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A named profile.

    Args:
        name: what settings, headers and reasons call it.
        scorers: each with its weight; the score is the weighted sum.
        knows_retries: it prices the models already tried, so it can say that all have been.
    """

    name: str
    scorers: Sequence[tuple[Scorer, float]]
    knows_retries: bool = False

    def score(self, view: View) -> Floats:
        """The weighted sum of the scorers' scores for each candidate."""
        if len(self.scorers) == 1:  # the common case; a weight does not change the order
            return self.scorers[0][0].score(view)
        total: Floats = sum(
            (weight * scorer.score(view) for scorer, weight in self.scorers),
            start=view.tokens * 0.0,
        )
        return total
