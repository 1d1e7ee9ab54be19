"""The parts of a cost: its weights, its terms, and the price of a wrong answer.

    cost = seconds / (A * Q) * retry_penalty ** times_tried

`A` is P(the endpoint answers), `Q` is P(the answer is correct), given the models that failed. The
seconds of the default policy are priced in `laar.policies.laar.outlook`. Everything is a vector
over the candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le

from laar.core.endpoints import Floats, Mask
from laar.declaring import Applies

MIN_PROBABILITY = 0.01
"""Floor of Q: below it a model has no chance, rather than a hundred times less of one, and dividing
by an estimate this small would rank endpoints by the noise in it."""

TUNABLE = {"k_rtt": (0.005, 2.0), "k_queue": (0.02, 2.0), "k_delay": (0.02, 2.0)}
"""Weights the tuner may set, each with its floor and cap. No floor is zero: a climb that can switch
a term off will do so sooner or later, because the objective does not see the term's cost."""

_PAST_A_NEAR_TIE = 1.1
_MAX_PENALTY = 1e100  # costs stay finite however often a model was tried


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWeights:
    """Weights of the cost."""

    section: ClassVar = "routing"
    applies: ClassVar = Applies.AT_ONCE

    k_rtt: Annotated[float, Ge(0), Le(1000)] = 1.0
    """Weight of the round trip in the cost. 1 counts its seconds as they are."""
    k_queue: Annotated[float, Ge(0), Le(1000)] = 1.0
    """Weight of the seconds that a request would wait behind prompts, or for a place in a full
    engine."""
    k_delay: Annotated[float, Ge(0), Le(1000)] = 1.0
    """Weight of the seconds that a request costs other requests: those present, and those that
    arrive during its prefill. 0 considers the request alone."""
    retry_penalty: Annotated[float, Ge(1), Le(1e6)] = 100.0
    """Factor on a model's cost for each time that it was tried. At the default it is used again
    only when no other model is left."""

    def tunable(self) -> dict[str, float]:
        """Return the weights that the tuner may set, by name."""
        return {name: getattr(self, name) for name in TUNABLE}


class TunedWeights:
    """Weights that a tuner may replace, decision by decision.

    Args:
        weights: the scorer's own.
    """

    def __init__(self, weights: CostWeights) -> None:
        self._own = weights
        self._tuned: Mapping[str, float] | None = None
        self._live = weights

    def under(self, tuned: Mapping[str, float] | None) -> CostWeights:
        """Return the own ones with the tuner's in them; made again when they change."""
        if tuned is None:
            return self._own
        if tuned is not self._tuned:
            self._tuned, self._live = tuned, replace(self._own, **tuned)
        return self._live


@dataclass(slots=True, kw_only=True)
class Terms:
    """The cost taken apart, in seconds; each an array over the candidates.

    `latency_s = rtt_s + base_s + prefill_s + queue_s + transfer_s + slow_s` is the expected time of
    the answer: `queue_s` is the delay by the others there, `slow_s` the time that the endpoint
    takes beyond its siblings, `transfer_s` the time for KV from the endpoint that reads the prompt
    (`laar.core.apart`). `cost_s` is a sum of seconds `/ (answers * probability) * penalty`, where
    `answers` is P(it answers). The default policy's sum weighs these and adds `others_s`
    (`laar.policies.laar.outlook`). None stands for 0, and for 1 in `answers`.
    """

    rtt_s: Floats
    base_s: Floats
    prefill_s: Floats
    queue_s: Floats
    probability: Floats
    penalty: Floats
    latency_s: Floats
    cost_s: Floats
    answers: Floats | None = None
    slow_s: Floats | None = None
    ttft_s: Floats | None = None
    others_s: Floats | None = None
    transfer_s: Floats | None = None

    @property
    def all_answers(self) -> Floats:
        """P(it answers) of each candidate."""
        return np.ones(len(self.cost_s)) if self.answers is None else self.answers

    @property
    def all_ttft_s(self) -> Floats:
        """The seconds to the first token at each candidate."""
        return self.latency_s - self.base_s if self.ttft_s is None else self.ttft_s

    @property
    def all_others_s(self) -> Floats:
        """The seconds that the request costs others at each candidate, less those it saves them."""
        return np.zeros(len(self.cost_s)) if self.others_s is None else self.others_s

    @property
    def all_transfer_s(self) -> Floats:
        """The seconds that each candidate waits for KV from another endpoint."""
        return np.zeros(len(self.cost_s)) if self.transfer_s is None else self.transfer_s

    @property
    def all_slow_s(self) -> Floats:
        """The seconds that each candidate takes beyond its siblings' time."""
        return np.zeros(len(self.cost_s)) if self.slow_s is None else self.slow_s


def until_correct(
    weights: CostWeights,
    seconds: Floats,
    probability: Floats,
    times_tried: Floats,
    *,
    answers: Floats | None,
    strict_retries: bool,
) -> tuple[Floats, Floats]:
    """Return seconds of an attempt as seconds until a correct answer, and the penalty in them."""
    expected = seconds / np.maximum(probability, MIN_PROBABILITY)
    if answers is not None:
        expected = expected / np.maximum(answers, MIN_PROBABILITY)
    if not np.count_nonzero(times_tried):
        return expected, times_tried + 1.0
    factor = weights.retry_penalty
    if strict_retries:
        factor = max(factor, _PAST_A_NEAR_TIE * expected.max() / max(expected.min(), 1e-12))
    penalty = np.minimum(factor**times_tried, _MAX_PENALTY)
    return expected * penalty, penalty


def scores_of_costs(cost_s: Floats) -> Floats:
    """Turn costs (seconds, lower is better) into scores in (0, 1] that keep their ratios.

    The cheapest scores 1; one that costs twice as much scores 0.5. All-zero costs score 1.
    """
    floored = np.maximum(cost_s, 1e-12)
    scores: Floats = np.minimum.reduce(floored) / floored
    return scores


def next_cost_s(terms: Terms, probability: Floats, left: Mask) -> float:
    """Return the expected seconds to a correct answer once this attempt has failed too.

    Attempts in ascending order of L / P(correct | failures) take all but the least expected time to
    the first correct answer, also where failures are not independent (a test compares every order
    of five models). So the stop compares this cost with the answer's value: no plan of the whole
    sequence is needed.

    Args:
        terms: terms of this attempt's candidates: their latencies stand for those of the next one.
        probability: P(correct) of each candidate, given that this attempt failed as well.
        left: candidates whose models are untried then. With none the result is 0: an endpoint to
            ask is missing just now, which is no reason to stop.
    """
    if not left.any():
        return 0.0
    chance = np.maximum(probability[left], MIN_PROBABILITY)
    return float((terms.latency_s[left] / chance).min())
