"""The parts of a cost: its weights, its terms, and the price of a wrong answer.

    cost = (seconds / A + (1 - Q) * wrong) * penalty ** times_repeated

`A` is P(the endpoint answers), `Q` is P(the answer is correct), given the models that failed.
`wrong` is what a wrong answer costs the client. If it asks again, that is the cost of the next
attempt, which is assumed to equal this one's, so the sum is `seconds / (A * Q)`. The penalty is for
models that would repeat a wrong answer. Where answers are sampled, Q says what a repeat is worth
(`laar.accuracy.difficulty`), and there is none.
`laar.policies.laar.outlook` computes the default policy's seconds. All values are vectors over the
candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from laar.declaring import Applies
from laar.fleet.endpoints import Floats

MIN_PROBABILITY = 0.01
"""Floor of Q. Below it a model has practically no chance, and dividing by so small an estimate
would rank endpoints by noise."""

RETRY_PENALTY = 100.0
"""Minimum factor on a model's cost for each time that it would repeat a wrong answer. The factor
always ranks it after all other models; this minimum also gives it a score near 0 in the mean of a
composed policy, as in the LAAR paper."""

FIRST = 2.0
"""Weight of a second before the first token: it delays both that token and the end."""

_PAST_A_NEAR_TIE = 1.1  # so that a tried model does not even tie with an untried one
_MAX_PENALTY = 1e100  # keeps costs finite however often a model was tried


class Aim(NamedTuple):
    """What a fleet is for, as weights of seconds.

    `during` weighs what a prefill delays others in flight, in overload (1 while nothing prefills);
    `coming` what later requests wait for.
    """

    during: float
    coming: float


AimName = Literal["all", "first-token"]

AIMS: Mapping[AimName, Aim] = {
    "all": Aim(1.0, 1.0),
    "first-token": Aim(0.1, 2.0),
}
"""Aims by name. Chosen in the lab (`overload`), on other requests than those that judge them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWeights:
    """Weights of the cost."""

    applies: ClassVar = Applies.AT_ONCE

    aim: AimName = "all"
    """What a busy fleet should keep short: `first-token` first tokens, `all` whole answers as well.
    The less the fleet prefills, the less they differ. A request may name another: `x-laar-options:
    aim=NAME`."""


class Price(NamedTuple):
    """The price of a request at each candidate, in seconds.

    Args:
        base_s: seconds that depend neither on the cache nor on others, to the end of the answer.
        prefill_s: seconds of prefill of the uncached tokens.
        ahead_s: the part of `queue_s` for the prompts ahead.
        queue_s: seconds of delay from other requests there, before the first token and after.
        ttft_s: seconds to the first token.
        latency_s: seconds to the end of the answer.
        own_s: weighted cost to the request itself.
        others_s: weighted cost to other requests.
        total_s: the sum of both costs.
        copy_s: seconds that a copy of the prompt there costs: prefill, delay of others, evictions.
        evicted_s: the part of `others_s` for the text that the prompt evicts.
    """

    base_s: Floats
    prefill_s: Floats
    ahead_s: Floats
    queue_s: Floats
    ttft_s: Floats
    latency_s: Floats
    own_s: Floats
    others_s: Floats
    total_s: Floats
    copy_s: Floats
    evicted_s: Floats

    def delayed(self, seconds: Floats) -> Price:
        """Return the price if the request begins so many seconds later."""
        return self._replace(
            ttft_s=self.ttft_s + seconds,
            latency_s=self.latency_s + seconds,
            own_s=self.own_s + FIRST * seconds,
            total_s=self.total_s + FIRST * seconds,
        )


@dataclass(slots=True, kw_only=True)
class Terms:
    """The cost terms in seconds; arrays over the candidates.

    `latency_s = rtt_s + base_s + prefill_s + queue_s`, plus those of `added` that delay the answer,
    is its expected time: `rtt_s` is the time on the network (`View.wire_s`), `queue_s` the delay
    caused by other requests there, `ahead_s` the part of it for the prompts ahead, `added` what
    plug-ins add (`laar.core.plugin`), by name, and as `transfer_s` the time to fetch KV from a
    prefiller.
    `cost_s` is a sum of seconds times `penalty / (answers * probability)`, where `answers` is P(it
    answers). The default policy's sum weights these and adds `others_s`, the seconds that other
    requests lose, less those they save (`laar.policies.laar.outlook`). None means 0; for `answers`,
    1; for `ttft_s`, not computed.
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
    ttft_s: Floats | None = None
    ahead_s: Floats | None = None
    others_s: Floats | None = None
    added: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def all_ttft_s(self) -> Floats:
        """Seconds to the first token at each candidate."""
        return self.latency_s - self.base_s if self.ttft_s is None else self.ttft_s

    def each(self, term: Floats | None, none: float = 0.0) -> Floats:
        """Return a term's value for each candidate, or `none` if the term is None."""
        return np.full(len(self.cost_s), none) if term is None else term


def until_correct(
    seconds: Floats,
    probability: Floats,
    times_repeated: Floats,
    answers: Floats | None,
    wrong_s: float | None = None,
) -> tuple[Floats, Floats]:
    """Return the expected seconds to a correct answer, retry penalty included, and the penalty.

    The penalty exceeds the spread of the costs, so a tried model comes after all untried ones.

    Args:
        seconds: what an attempt costs.
        probability: Q.
        times_repeated: earlier attempts with the candidate's model, whose answer it would repeat.
        answers: A; None means 1.
        wrong_s: what a wrong answer costs the client; None if it then pays the next attempt. The
            part that no candidate avoids is left out, so that near-ties stay near.
    """
    expected = seconds
    if answers is not None:
        expected = expected / np.maximum(answers, MIN_PROBABILITY)
    if wrong_s is None:
        expected = expected / np.maximum(probability, MIN_PROBABILITY)
    else:
        expected = expected + wrong_s * (np.maximum.reduce(probability) - probability)
    if not np.count_nonzero(times_repeated):
        return expected, times_repeated + 1.0
    past_all = _PAST_A_NEAR_TIE * expected.max() / max(expected.min(), 1e-12)
    factor = max(RETRY_PENALTY, past_all)
    penalty = np.minimum(factor**times_repeated, _MAX_PENALTY)
    return expected * penalty, penalty


def scores_of_costs(cost_s: Floats) -> Floats:
    """Turn costs (seconds, lower is better) into scores in (0, 1] that keep their ratios.

    The cheapest scores 1; one at twice its cost scores 0.5. If all costs are zero, all score 1.
    """
    floored = np.maximum(cost_s, 1e-12)
    scores: Floats = np.minimum.reduce(floored) / floored
    return scores
