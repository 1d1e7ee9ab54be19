"""The papers' cost: expected seconds until a correct answer, as a sum of published terms.

    cost(e | x) = L(e, x) / (A(e) * Q(m(e), x, tried)) * penalty ** times_tried
    L(e, x)     = k_rtt * rtt_s + base_s(m)
                + c(m) * (uncached * (1 + k_delay * min(in_flight, 32)) + k_queue * queued
                          + in_flight_tokens * in_flight)

From LAAR section 4 (L / Q and the retry penalty) and GORGO section 3 (round trip, uncached prefix
and queued tokens in one sum). With `k_rtt=0`, no cached tokens and `base_s=0` it is LAAR's cost, as
used by `laar-paper`; with `Q=1` and `c=1` it orders endpoints like GORGO's score. The other terms
are laar's and appear in neither paper: `base_s` is the part of the latency that does not grow with
the prompt, `k_delay` the prefills that a prompt delays, and `in_flight_tokens` the answers decoded
in the same batch. `laar-paper` and the experiment `gorgo-rtt` use this cost;
laar's default policy uses an engine model instead: `laar.policies.laar.outlook`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laar.core.cost import RETRY_PENALTY, Terms, scores_of_costs, until_correct
from laar.core.interfaces import View
from laar.fleet.endpoints import Floats

IN_FLIGHT_TOKENS = 100.0
"""Delay that a request in flight causes for another, in prefill tokens. Decoding 80 tokens at 0.12
ms per sequence in the batch takes about as long as prefilling 100."""

HELD_UP = 32.0
"""Maximum number of requests in flight that a prefill delays. Only those being decoded are delayed;
the others wait ahead of it. Without this bound, hundreds of prompts that arrive together would be
placed by the delays instead of by the tokens ahead, and one endpoint would get most of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """Weights of the published cost.

    `k_rtt` is the weight of the round trip; GORGO's 0.276 tokens per millisecond are 0.028 at
    10,000 tokens per second. `k_queue` is that of queued tokens, 0.7 in LAAR; tokens of prompts in
    flight that are probably cached are left out. `k_delay` is the part of a prefill's cost added
    for each request in flight.
    """

    k_rtt: float = 1.0
    k_queue: float = 1.0
    k_delay: float = 1.0
    in_flight_tokens: float = IN_FLIGHT_TOKENS
    """Weight of a request in flight besides its prompt, in uncached tokens of the new request."""


class ExpectedTime:
    """Scores by the published cost.

    Args:
        weights: weights of the cost's terms.
        use_prefix: leave out probably cached tokens, both of the prompt and of queued prompts; off
            for LAAR as published.
        use_base: include `base_s`; off for LAAR as published.
        strict_retries: prefer candidates whose model was tried less often, regardless of cost; off
            for LAAR as published, where other terms can exceed a penalty of 100.
    """

    def __init__(
        self,
        weights: PublishedWeights,
        *,
        use_prefix: bool = True,
        use_base: bool = True,
        strict_retries: bool = True,
    ) -> None:
        self.weights = weights
        self._use_prefix = use_prefix
        self._use_base = use_base
        self._strict_retries = strict_retries

    def score(self, view: View) -> Floats:
        """Price the candidates, store the terms in the view, and turn costs into scores."""
        tokens, queued = view.tokens, view.queued_tokens
        if self._use_prefix:
            tokens = tokens - view.cached_tokens
            queued = view.table.queued_uncached_tokens[view.slots]
        view.terms = expected_time(
            self.weights,
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
        )
        return scores_of_costs(view.terms.cost_s)


def expected_time(
    weights: PublishedWeights,
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
) -> Terms:
    """Price every candidate. No input may be NaN; the caller resolves unknowns.

    With `strict_retries` the penalty is raised above the spread of the costs if necessary, so that
    a tried model is used again only if no other is left.
    """
    rtt = weights.k_rtt * rtt_s
    prefill = seconds_per_token * uncached_tokens
    queue = seconds_per_token * (
        weights.k_queue * queued_tokens + weights.in_flight_tokens * in_flight
    )
    if weights.k_delay:
        queue = queue + prefill * (weights.k_delay * np.minimum(in_flight, HELD_UP))
    latency = rtt + base_s + prefill + queue
    counted = times_tried if strict_retries else np.zeros(len(latency))
    cost, penalty = until_correct(latency, probability, counted, answers)
    if not strict_retries:
        penalty = np.minimum(RETRY_PENALTY**times_tried, 1e100)
        cost = cost * penalty
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
    )
