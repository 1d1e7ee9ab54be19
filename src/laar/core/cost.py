"""The one cost: expected seconds until a correct answer.

    cost(e | x) = L(e, x) / (A(e) * Q(m(e), x, tried)) * retry_penalty ** times_tried
    L(e, x)     = k_rtt * rtt_s + base_s(m)
                + c(m) * (uncached * (1 + k_delay * min(in_flight, 32)) + k_queue * queued
                          + in_flight_tokens * in_flight)
                + slow_s(e)

LAAR section 4 (L / Q and the retry penalty), GORGO section 3 (round trip, uncached prefix and
queued tokens in one sum). Both published forms are special cases: with `k_rtt=0`, no cached tokens
and `base_s=0` it is LAAR's; with `Q=1` and `c=1` it orders endpoints as GORGO's score does.
`base_s` is ours: the part of a model's latency that does not grow with the prompt, above all the
decoding of its answer. LAAR leaves it out, which misprices short prompts on slow-decoding models.

`k_delay` is ours too: an engine that prefills decodes slower or not at all, so a prompt costs its
prefill once for itself and once for each request already there. It is what makes the parameter-free
product `uncached * (in_flight + 1)` good, with the round trip and P(correct) beside it.

`in_flight_tokens` is ours as well: a request in flight is also an answer that is decoded in every
step beside ours, however much of its prompt was cached. Without it, where nearly everything is
cached, the others weigh nothing and conversations pile up on warm endpoints (`laar lab run
llm-router-slope`). With both at 0 the published forms are exact.

`A`, P(the endpoint answers), and `slow_s` come from `laar.health`: an endpoint that fails half of
the time costs twice as much, one that takes ten times as long as its siblings the seconds it
takes. Both are absent (1 and 0) while all are sound.

Everything is a vector over the candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le

from laar.core.endpoints import Floats
from laar.declaring import FIXED, Applies

__all__ = [
    "TUNABLE",
    "CostWeights",
    "Terms",
    "TunedWeights",
    "expected_time",
    "scores_of_costs",
    "until_correct",
]

MIN_PROBABILITY = 0.01
"""Floor of Q: below it a model is not a hundred times worse, it is merely hopeless, and dividing
by an estimate this small would rank endpoints by the noise in it."""

TUNABLE = {"k_rtt": (0.005, 2.0), "k_queue": (0.02, 2.0), "k_delay": (0.02, 2.0)}
"""Weights the tuner may set, each with its floor and cap. No floor is zero: a climb that finds it
can switch a term off finds, sooner or later, that the objective does not see what that costs."""

HELD_UP = 32.0
"""Requests in flight that a prefill can hold up at most: those that are being decoded. The others
there wait ahead of it. Without a bound hundreds of prompts that come at once are dealt out by their
delays instead of by the tokens ahead, and one endpoint gets most of those."""

_PAST_A_NEAR_TIE = 1.1
_MAX_PENALTY = 1e100  # costs stay finite however often a model was tried


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWeights:
    """Weights of the cost.

    In the form of the papers, `expected_time`, `k_queue` is alpha, and prompts in flight count
    without what is probably cached; `k_delay` is the part of a prefill that counts again for
    each request in flight, up to `HELD_UP`; and `in_flight_tokens` counts. GORGO's 0.276 tokens a
    millisecond are a `k_rtt` of 0.028 at 10,000 tokens a second.
    """

    section: ClassVar = "routing"
    applies: ClassVar = Applies.AT_ONCE

    k_rtt: Annotated[float, Ge(0), Le(1000)] = 1.0
    """Weight of the round trip in the cost; 1: seconds are seconds."""
    k_queue: Annotated[float, Ge(0), Le(1000)] = 1.0
    """Weight of the seconds that a request would wait behind prompts, or for a place in a full
    engine."""
    k_delay: Annotated[float, Ge(0), Le(1000)] = 1.0
    """Weight of the seconds that a request costs others: those that are there, and those who come
    while its prompt is read. 0 looks at the request alone."""
    in_flight_tokens: Annotated[float, FIXED] = 100.0
    """What a request in flight counts for besides its prompt, in uncached tokens of this one: 80
    decoded tokens at 0.12 ms for each sequence of a batch are about 100."""
    retry_penalty: Annotated[float, Ge(1), Le(1e6)] = 100.0
    """Factor on a model's cost for each time it was tried already: it is used again only when
    nothing else is left."""

    def tunable(self) -> dict[str, float]:
        """The weights that the tuner may set, by name."""
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
        """The own ones with the tuner's in them, if there are any; made again when they change."""
        if tuned is None:
            return self._own
        if tuned is not self._tuned:
            self._tuned, self._live = tuned, replace(self._own, **tuned)
        return self._live


@dataclass(slots=True, kw_only=True)
class Terms:
    """The cost taken apart, in seconds; each an array over the candidates.

    `latency_s = rtt_s + base_s + prefill_s + queue_s + transfer_s + slow_s`, weights applied;
    `cost_s = latency_s / (answers * probability) * penalty`. `queue_s` is what others there cost:
    the tokens ahead, their decoding, and the delay that the prompt's prefill means for them.
    `slow_s` is what the endpoint takes longer than its siblings, and `answers` is P(it answers);
    `transfer_s` is for KV that comes from the endpoint that reads the prompt (`laar.core.apart`).
    None stands for 0, and for 1 of `answers`, everywhere.
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
        """What the request costs others at each candidate, less what it spares them."""
        return np.zeros(len(self.cost_s)) if self.others_s is None else self.others_s

    @property
    def all_transfer_s(self) -> Floats:
        """What each candidate waits for KV that comes from elsewhere."""
        return np.zeros(len(self.cost_s)) if self.transfer_s is None else self.transfer_s

    @property
    def all_slow_s(self) -> Floats:
        """What each candidate takes longer than its siblings."""
        return np.zeros(len(self.cost_s)) if self.slow_s is None else self.slow_s


def expected_time(
    weights: CostWeights,
    *,
    rtt_s: Floats,
    base_s: Floats,
    seconds_per_token: Floats,
    uncached_tokens: Floats,
    queued_tokens: Floats,
    in_flight: Floats,
    probability: Floats,
    times_tried: Floats,
    strict_retries: bool = False,
    answers: Floats | None = None,
    pace: Floats | None = None,
    typical_s: Floats | float = 0.0,
) -> Terms:
    """Prices every candidate. No input may be NaN: unknowns are settled by the caller.

    `pace` is how many times slower than its siblings an endpoint is, and `typical_s` the time of a
    whole answer, most of which the other terms leave out where `base_s` is not known.

    With `strict_retries` the penalty is raised, where it has to be, above the spread of the costs:
    a tried model is then used again only when no other is left.
    """
    rtt = weights.k_rtt * rtt_s
    prefill = seconds_per_token * uncached_tokens
    queue = seconds_per_token * (
        weights.k_queue * queued_tokens + weights.in_flight_tokens * in_flight
    )
    if weights.k_delay:
        queue = queue + prefill * (weights.k_delay * np.minimum(in_flight, HELD_UP))
    latency = rtt + base_s + prefill + queue
    slow = None
    if pace is not None:
        slow = (pace - 1.0) * (latency + typical_s)
        latency = latency + slow
    cost, penalty = until_correct(
        weights, latency, probability, times_tried, answers=answers, strict_retries=strict_retries
    )
    return Terms(
        rtt_s=rtt,
        base_s=base_s,
        prefill_s=prefill,
        queue_s=queue,
        probability=probability,
        penalty=penalty,
        latency_s=latency,
        cost_s=cost,
        answers=answers,
        slow_s=slow,
    )


def until_correct(
    weights: CostWeights,
    seconds: Floats,
    probability: Floats,
    times_tried: Floats,
    *,
    answers: Floats | None,
    strict_retries: bool,
) -> tuple[Floats, Floats]:
    """Seconds of an attempt as seconds until a correct answer, and the penalty in them."""
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
    """Turns costs (seconds, lower is better) into scores in (0, 1] that keep their ratios.

    The cheapest scores 1; one that costs twice as much scores 0.5. All-zero costs score 1.
    """
    floored = np.maximum(cost_s, 1e-12)
    scores: Floats = np.minimum.reduce(floored) / floored
    return scores
