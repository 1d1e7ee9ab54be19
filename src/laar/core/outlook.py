"""The cost that serves: what a request would take, and what it would cost all others.

    cost   = (own + others - invested) / (A * Q) * retry_penalty ** times_tried        [seconds]

    own    = 2 * (k_rtt * rtt + base + read * (1 + s * n) + k_queue * wait)
             + (answer + b * n) / (1 - load)
    others = k_delay * (read * ((s + w) * n + 2 * later) + b * n + 2 * queued)

`read` is the uncached part of the prompt in the endpoint's seconds, `wait` the prompts ahead of it
(and, where more are there than the engine runs at once, the wait for a place), `answer` its answer
alone, `load` the share of the time that the endpoint reads prompts. The constants are learned
(`laar.core.engines`). A second before a first token counts twice: for that token, and for the end.

* `n` others are there. An answer beside them lasts `2 b` longer for each, of which half counts: of
  an answer that is under way, half is over on average. The same for each of them: they wait for our
  prompt where prompts are read in turn (`w`), or go slower while it is read (`s`).
* `later`: who comes to that endpoint while it is still busy with this prompt waits as well. Until
  the work ahead is done, `(wait + read) / (1 - load)` seconds later as busy periods go, requests
  come at the fleet's rate for each endpoint, and `w * read` is added to each of them. So long
  prompts weigh more than in proportion, and a conversation does not move lightly.
* `queued`: the same for places in a full engine.
* `invested`: a prefix that many ask for is worth a copy. They would be spared what the endpoints
  that hold it are busier, on average of late, than this one. As many are expected as came lately
  (`laar.prefix.demand`), less those whom the copies there are would serve; and no more is given
  than the copy costs.

Where the client has an objective for the first token, waiting up to it costs next to nothing, and
beyond it several times as much: a patient job goes where its prefix is, however far.

Tried and left out: a price for what a prompt pushes out of a cache, work / (1 - r) (no gain where
caches are short), a lower weight of the round trip, and the long-run mean beside `n`.
Decision 0014 has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from laar.core.cost import CostWeights, Terms, scores_of_costs, until_correct
from laar.core.endpoints import Floats
from laar.core.engines import Constants, Engines
from laar.core.interfaces import Demand, View

__all__ = ["Outlook"]

MAX_LOAD = 0.8
"""Busy periods grow without bound as an endpoint's load goes to 1; it is not known so well."""

FIRST = 2.0
"""What a second before the first token weighs: it counts for that token and for the end."""

PATIENT, URGENT = 0.05, 4.0
"""What a second of waiting weighs before the client's objective is over, and after."""

_FAR_S = 1e15  # clocks that jump stay numbers
_SAME = 0.01  # of a prompt: shares that differ by less are one
_ONCE = 1.5  # a prefix that is asked for less often than this is worth no look


class Outlook:
    """Scores by the cost above.

    Args:
        weights: of the round trip (`k_rtt`), of waiting (`k_queue`) and of the others (`k_delay`).
            All are 1: seconds are seconds.
    """

    def __init__(self, weights: CostWeights) -> None:
        self.weights = weights
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
        weights, slots = self._weights(view), view.slots
        now = max(-_FAR_S, min(view.now, _FAR_S)) if view.now == view.now else 0.0
        engines = view.engines or Engines(view.table)
        of = engines.constants(slots, view.table.model_id[slots], view.base_s)
        rate, load = engines.arrivals(now)
        uncached = view.tokens - view.cached_tokens
        read = of.read * view.seconds_per_token * uncached
        n = np.minimum(view.in_flight, of.slots) if of.ever_full else view.in_flight
        slowed = of.slowed * n
        beside = 0.5 * of.beside_s * n
        wait = of.waits * engines.ahead(slots, now, of.read)
        idle = 1.0 - np.minimum(MAX_LOAD, of.waits * engines.loads(slots, now))
        answer = (of.answer_s + beside) / idle
        queued: Floats | float = 0.0
        if of.ever_full:
            queued = _queued(view, of, n, load / rate if rate > 0.0 else 0.0)
            wait = wait + queued
        alone = of.base_s + read + read * slowed
        first = alone + wait

        # What it costs the others.
        rate /= len(slots)
        later = rate * (of.turns * (wait + read) / idle + 0.5 * of.slowed * read)
        work = read * (slowed + of.turns * n + FIRST * later)
        others = weights.k_delay * (work + beside + FIRST * queued * (MAX_LOAD / (1.0 - MAX_LOAD)))

        way = _urgency(view, weights, first, wait)
        slow = None
        own = FIRST * (alone + way) + answer
        if view.pace is not None:
            slow = (view.pace - 1.0) * (own + view.typical_s)
            own = own + slow
        total = own + others
        invested: Floats | float = 0.0
        if view.demand is not None and len(view.demand[1]) and view.demand[1][0] > _ONCE:
            slope = of.beside_s + (2.0 * of.slowed + of.turns) * float(read.min())
            invested = _invested(
                *(view, view.demand, engines, now, total),
                *(read + read * slowed + work, slope),
            )
            total = total - invested
        cost, penalty = until_correct(
            *(weights, total, view.probability, view.times_tried),
            answers=view.answers,
            strict_retries=True,
        )
        view.terms = Terms(
            rtt_s=view.rtt_s,
            base_s=of.base_s + of.answer_s,
            prefill_s=read,
            queue_s=first + answer - (of.base_s + of.answer_s + read),
            probability=view.probability,
            penalty=penalty,
            latency_s=view.rtt_s + first + answer + (0.0 if slow is None else slow),
            cost_s=cost,
            answers=view.answers,
            slow_s=slow,
            ttft_s=view.rtt_s + first,
            others_s=others - invested,
        )
        return scores_of_costs(cost)


def _urgency(view: View, weights: CostWeights, first: Floats, wait: Floats) -> Floats:
    """What the way there and the wait weigh; by the objective, where there is one."""
    way: Floats = weights.k_rtt * view.rtt_s + weights.k_queue * wait
    objective = view.request.ttft_objective_s
    if objective is None:
        return way
    late = np.clip(view.rtt_s + first - objective, 0.0, view.rtt_s + wait)
    return PATIENT * (way - late) + URGENT * late


def _queued(view: View, of: Constants, n: Floats, mean_work_s: float) -> Floats:
    """The wait for a place, where more are there than the engine runs at once."""
    over = np.maximum(view.in_flight + 1.0 - of.slots, 0.0)
    life_s = (
        of.base_s + of.read * mean_work_s * (1.0 + of.slowed * n) + of.answer_s + of.beside_s * n
    )
    queued: Floats = over * life_s / of.slots
    return queued


def _invested(
    view: View,
    demand: Demand,
    engines: Engines,
    now: float,
    total: Floats,
    price: Floats,
    slope: Floats,
) -> Floats | float:
    """What a copy of the prefix at each candidate would spare those who will ask for it."""
    best = int(total.argmin())
    # Only where a copy for nothing would win: mostly nowhere.
    near = np.flatnonzero(total - price < total[best])
    if len(near) < 2:
        return 0.0
    share = view.cached_tokens / np.maximum(view.tokens, 1.0)
    top = float(share[best])
    mean = engines.mean_in_flight(view.slots, now)
    less = (slope * (mean[best] - mean))[near]
    has = share[near]
    gains = (has < top - _SAME) & (less > 0.0)
    if not gains.any():
        return 0.0
    missing = np.maximum(top - has, _SAME)
    edges, uses = np.concatenate(([0.0], demand[0])), demand[1]
    asked = np.concatenate(([0.0], np.cumsum((edges[1:] - edges[:-1]) * uses)))
    users = (np.interp(top, edges, asked) - np.interp(has, edges, asked)) / missing
    copies = int(np.count_nonzero(share >= top - _SAME))
    worth = users / (copies + 1) * less
    cost = price[near] * np.minimum(1.0, missing / np.maximum(1.0 - has, _SAME))
    invested = np.zeros(len(total))
    invested[near] = np.where(gains, np.minimum(worth, cost), 0.0)
    return invested
