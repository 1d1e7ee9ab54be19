"""The cost that serves: what a request would take, and what it would cost all others.

    cost   = (own + others - invested) / (A * Q) * retry_penalty ** times_tried        [seconds]

    own    = 2 * (k_rtt * rtt + base + read * (1 + s * n) + k_queue * wait)
             + (answer + b * n) / (1 - load)
    others = k_delay * (work + evicted + b * n + 2 * (queued + room))
    work   = read * ((s + w) * n + 2 * later)
    evicted = r * (2 * read * (1 + s * n) + work)

`read` is the uncached part of the prompt in the endpoint's seconds, its context counted, `wait` the
prompts ahead of it (and, in a full engine, the wait for a place and for room in its cache),
`answer` its answer alone, `load` the share of the time that the endpoint reads prompts. The
constants are learned (`laar.core.engines`). A second before a first token counts twice: for that
token, and for the end.

* `n` others are there. An answer beside them lasts `2 b` longer for each, of which half counts: of
  an answer that is under way, half is over on average. The same for each of them: they wait for our
  prompt where prompts are read in turn (`w`), or go slower while it is read (`s`).
* `later`: who comes to that endpoint while it is still busy with this prompt waits as well. Until
  the work ahead is done, `wait / (1 - load)` seconds later as busy periods go, requests come at the
  fleet's rate for each endpoint, and `w * read` is added to each of them; to those who come while
  this prompt is read, half of that on average. So long prompts weigh more than in proportion, and
  a conversation does not move lightly.
* `evicted`: what is read takes room in the endpoint's cache and, where that is full, pushes out
  what was used least recently. A share `r` of text of that age is asked for again, and is read
  again (`laar.prefix.evictions`). So a prompt goes where there is room,
  or where only what is long forgotten leaves.
* `queued`: the same for places in a full engine.
* `room`: where the prompts in flight fill the engine's KV cache, ours waits until enough of them
  have ended, and as long again whoever comes after it. The cache's size is from the metrics page,
  and so is what a token in flight takes of it (`laar.core.batches`).
* `invested`: a prefix that many ask for is worth a copy. They would be spared what the endpoints
  that hold it are busier, on average of late, than this one. As many are expected as came recently
  (`laar.prefix.demand`), less those whom the copies there are would serve; and no more is given
  than the copy costs.

What an adapter takes that has to be loaded, or to wait for a place, comes with the base
(`laar.core.adapters`).

Where the client has an objective for the first token, waiting up to it costs next to nothing, and
beyond it several times as much: a patient job goes where its prefix is, however far.

Tried and left out: a lower weight of the round trip, a heavier one of first tokens, rent for the
whole prompt where caches are short, the long-run mean beside `n`, and what a prompt that is read
again pushes out in turn.
Decision 0014 has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from laar.core.apart import Apart, cheapest
from laar.core.cost import (
    MIN_PROBABILITY,
    CostWeights,
    Terms,
    TunedWeights,
    scores_of_costs,
    until_correct,
)
from laar.core.endpoints import Floats, Slots
from laar.core.engine_model import Constants
from laar.core.engines import Engines
from laar.core.interfaces import Demand, View
from laar.core.traffic import FEW_CAME, seconds_ahead

__all__ = ["Outlook"]

MAX_LOAD = 0.8
"""Busy periods grow without bound as an endpoint's load goes to 1; it is not known so well."""

FIRST = 2.0
"""What a second before the first token weighs: it counts for that token and for the end."""

PATIENT, URGENT = 0.05, 4.0
"""What a second of waiting weighs before the client's objective is over, and after."""

_FAR_S = 1e15  # clocks that jump stay numbers
_SAME = 0.01  # of a prompt: shares that differ by less are one
_FEW = 8  # candidates that are priced one by one: an array costs as much for one as for all
_ONCE = 1.5  # a prefix that is asked for less often than this is worth no look


class Outlook:
    """Scores by the cost above.

    Args:
        weights: of the round trip (`k_rtt`), of waiting (`k_queue`) and of the others (`k_delay`).
            All are 1: seconds are seconds.
    """

    def __init__(self, weights: CostWeights) -> None:
        self.weights = weights
        self._tuned = TunedWeights(weights)

    def score(self, view: View) -> Floats:
        """Prices the candidates, leaves the terms in the view, and turns costs into scores."""
        weights, slots = self._tuned.under(view.weights), view.slots
        now = max(-_FAR_S, min(view.now, _FAR_S)) if view.now == view.now else 0.0
        engines = view.engines or Engines(view.table)
        of = engines.constants(slots, view.base_s)
        asked, mean_load = engines.traffic.asked(slots, now)
        rate, load = engines.traffic.arrivals(now)
        crowded = engines.crowded(slots, view.tokens)
        fleet = _Fleet(
            weights=weights,
            objective_s=view.request.ttft_objective_s,
            rate=rate / len(slots),
            mean_work_s=load / rate if rate > 0.0 else 0.0,
            ever_full=of.ever_full or crowded is not None,
            mean_load=mean_load,
            now=now,
        )
        again = np.zeros(len(slots)) if view.again is None else view.again
        prompt = view.tokens, view.cached_tokens, view.seconds_per_token
        crowded = np.zeros(len(slots)) if crowded is None else crowded
        known: tuple[Floats, ...] = (*prompt, view.in_flight, view.rtt_s, again, crowded)
        if len(slots) <= _FEW:
            rows = zip(*[column.tolist() for column in known], *asked.tolist(), strict=True)
            each = [
                _priced(fleet, min, max, *row, *constants)
                for row, constants in zip(rows, of.rows, strict=True)
            ]
            prices: Iterable[Floats] = np.array(each).T
        else:
            prices = _priced(fleet, np.minimum, np.maximum, *known, *asked, *of.columns)
        base, read, queue, ttft, latency, own, others, total, copy, evicted = prices
        if view.apart is not None:
            plain = base, read, queue, ttft, latency, own, others, total, copy
            base, read, queue, ttft, latency, own, others, total, copy = _apart(
                view, view.apart, engines, of, fleet, known, asked, plain, evicted
            )

        if view.load_s is not None:  # before the first token, as the base is
            base, ttft, latency = base + view.load_s, ttft + view.load_s, latency + view.load_s
            own, total = own + FIRST * view.load_s, total + FIRST * view.load_s
        slow = None
        if view.pace is not None:
            slow = (view.pace - 1.0) * (own + view.typical_s)
            total, latency = total + slow, latency + slow
        if view.demand is not None and view.demand[1][0] > _ONCE:
            best = int(total.argmin())
            near = (total - copy < total[best]).nonzero()[0]
            if len(near) > 1:  # a copy for nothing would win: mostly nowhere
                invested = _invested(view, view.demand, engines, of, now, near, best, read, copy)
                total, others = total - invested, others - invested
        cost, penalty = until_correct(
            weights,
            total,
            view.probability,
            view.times_tried,
            answers=view.answers,
            strict_retries=True,
        )
        view.terms = Terms(
            rtt_s=view.rtt_s,
            base_s=base,
            prefill_s=read,
            queue_s=queue,
            probability=view.probability,
            penalty=penalty,
            latency_s=latency,
            cost_s=cost,
            answers=view.answers,
            slow_s=slow,
            ttft_s=ttft,
            others_s=others,
            transfer_s=None if view.apart is None else view.apart.transfer_s,
        )
        return scores_of_costs(cost)


_Numbers = Any
"""A float, of one candidate, or an array over them: both go through the same formula."""


@dataclass(slots=True, kw_only=True)
class _Fleet:
    """What is the same for all candidates."""

    weights: CostWeights
    objective_s: _Numbers | None
    rate: float
    mean_work_s: float
    ever_full: bool
    mean_load: _Numbers
    now: _Numbers


def _priced(
    fleet: _Fleet,
    least: Callable[[_Numbers, _Numbers], _Numbers],
    most: Callable[[_Numbers, _Numbers], _Numbers],
    tokens: _Numbers,
    cached_tokens: _Numbers,
    seconds_per_token: _Numbers,
    n: _Numbers,
    rtt: _Numbers,
    again: _Numbers,
    crowded: _Numbers,
    ahead_s: _Numbers,
    since: _Numbers,
    free_at: _Numbers,
    load: _Numbers,
    came: _Numbers,
    base: _Numbers,
    reads: _Numbers,
    slows: _Numbers,
    waits: _Numbers,
    turns: _Numbers,
    alone_s: _Numbers,
    beside_s: _Numbers,
    bend: _Numbers,
    slots: _Numbers,
) -> tuple[_Numbers, ...]:
    """Its terms, its own seconds and those of others, their sum, and what of it a copy costs."""
    weights = fleet.weights
    read = reads * seconds_per_token * (tokens - cached_tokens)
    read = read * (1.0 + 0.5 * bend * (tokens + cached_tokens))
    queued = room_s = 0.0
    if fleet.ever_full:  # the wait for a place, or for room in the cache
        over = most(n + 1.0 - slots, 0.0)
        n = least(n, slots)
        life_s = base + reads * fleet.mean_work_s * (1.0 + slows * n) + alone_s + beside_s * n
        queued = over * life_s / slots
        room_s = crowded * life_s
    slowed = slows * n
    beside = 0.5 * beside_s * n
    wait = waits * seconds_ahead(most, ahead_s, since, free_at, fleet.now, reads) + queued + room_s
    # Where few requests came, mostly what all were sent on average.
    load = (load * came + FEW_CAME * fleet.mean_load) / (came + FEW_CAME)
    idle = 1.0 - least(MAX_LOAD, waits * load)
    answer = (alone_s + beside) / idle
    alone = base + read + read * slowed
    first = alone + wait

    # What it costs the others.
    later = fleet.rate * (turns * (wait + 0.5 * read) / idle + 0.5 * slows * read)
    work = read * (slowed + turns * n + FIRST * later)
    evicted = again * (FIRST * (read + read * slowed) + work)
    work = work + evicted
    full_s = queued * (MAX_LOAD / (1.0 - MAX_LOAD)) + room_s
    others = weights.k_delay * (work + beside + FIRST * full_s)

    # The way there and the wait weigh by the objective, where there is one.
    way = weights.k_rtt * rtt + weights.k_queue * wait
    if fleet.objective_s is not None:
        late = least(most(rtt + first - fleet.objective_s, 0.0), rtt + wait)
        way = PATIENT * (way - late) + URGENT * late
    own = FIRST * (alone + way) + answer
    fixed = base + alone_s
    queue = first + answer - (fixed + read)
    ttft = rtt + first
    copy = read + read * slowed + work
    return fixed, read, queue, ttft, ttft + answer, own, others, own + others, copy, evicted


def _apart(
    view: View,
    apart: Apart,
    engines: Engines,
    of: Constants,
    fleet: _Fleet,
    known: Sequence[Floats],
    asked: Floats,
    plain: Sequence[Floats],
    evicted: Floats,
) -> Sequence[Floats]:
    """The prices again, those of candidates in their place that had better not read the prompt.

    A pair costs `own + others` of an answer of one token at the prefiller, and the same of an
    answer without a prompt where it is written, with what is queued there by then. The soonest
    that any prefiller of the kin is ready stands for `then`: so the two are a sum, and the
    cheapest prefiller is the cheapest for every candidate (`laar.core.apart.cheapest`).
    """
    helpers, slots, weights = apart.of, view.slots, fleet.weights
    if not len(helpers.slots):  # those there are, are out
        apart.chosen, apart.transfer_s = np.full(len(slots), -1), np.zeros(len(slots))
        return plain
    none = np.zeros(len(helpers.slots))
    there = engines.constants(helpers.slots, apart.base_s)
    busy, mean_load = engines.traffic.asked(helpers.slots, fleet.now)
    again = none if apart.again is None else apart.again
    here: list[Floats] = [apart.tokens, apart.cached_tokens, apart.seconds_per_token]
    here += [apart.decoding, none, again, none, *busy, *there.columns[:-4], none, none]
    here += [there.bend, there.slots]
    rate = engines.traffic.visits(helpers.slots, fleet.now)
    visits = replace(fleet, rate=rate, mean_load=mean_load, ever_full=False)
    there_base, there_read, there_queue, ready, _, _, there_others, there_cost, _, _ = _priced(
        visits, np.minimum, np.maximum, *here
    )
    if helpers.answers is not None:
        there_cost = there_cost / np.maximum(helpers.answers, MIN_PROBABILITY)
    chosen = cheapest(there_cost, helpers, slots)
    can = chosen >= 0
    at = np.where(can, chosen, 0)

    transfer = apart.transfer_s_per_token * (view.tokens - view.cached_tokens)
    soonest = np.full(1 + int(helpers.kin.max(initial=0)), np.inf)
    np.minimum.at(soonest, helpers.kin, ready)
    then = np.where(can, soonest[helpers.kin[at]], 0.0)
    objective_s = fleet.objective_s
    later = replace(
        fleet,
        now=fleet.now + then + transfer,
        objective_s=None if objective_s is None else np.maximum(objective_s - then, 0.0),
    )
    row: list[Floats] = [view.tokens, view.tokens, *known[2:], *asked, *of.columns]
    base, _, queue, ttft, latency, own, others, _, _, _ = _priced(
        later, np.minimum, np.maximum, *row
    )
    own = own + FIRST * transfer + there_cost[at] - there_others[at]
    others = others + weights.k_delay * evicted + there_others[at]
    moved = ready[at] + transfer
    total = own + others
    was = plain[7]
    match apart.rule:
        case "always":
            taken = can
        case "threshold":
            taken = can & (view.tokens - view.cached_tokens >= apart.least_tokens)
        case _:
            taken = can & (total < was)
    apart.chosen = np.where(taken, chosen, -1)
    apart.transfer_s = np.where(taken, transfer, 0.0)
    apart.saved_s = np.where(can, np.where(taken, was - total, total - was), 0.0)
    read = base + there_base[at], there_read[at], queue + there_queue[at]
    answered = ttft + moved, latency + moved, own, others, total
    priced = (*read, *answered, np.zeros(len(slots)))
    return [np.where(taken, one, other) for one, other in zip(priced, plain, strict=True)]


def _invested(
    view: View,
    demand: Demand,
    engines: Engines,
    of: Constants,
    now: float,
    near: Slots,
    best: int,
    read: Floats,
    price: Floats,
) -> Floats | float:
    """What a copy of the prefix at each candidate would spare those who will ask for it.

    `near` are those where a copy for nothing would win over the `best`.
    """
    share = view.cached_tokens / np.maximum(view.tokens, 1.0)
    top, has = float(share[best]), share[near]
    gains = has < top - _SAME
    if not np.count_nonzero(gains):
        return 0.0
    mean = engines.traffic.mean_in_flight(view.slots, now)
    slope = of.beside_s + (2.0 * of.slowed + of.turns) * float(read.min())
    less = (slope * (mean[best] - mean))[near]
    gains &= less > 0.0
    if not np.count_nonzero(gains):
        return 0.0
    missing = np.maximum(top - has, _SAME)
    edges, uses = np.concatenate(([0.0], demand[0])), demand[1]
    asked = np.concatenate(([0.0], np.cumsum((edges[1:] - edges[:-1]) * uses)))
    sharing = np.interp(np.concatenate(([top], has)), edges, asked)
    users = (sharing[0] - sharing[1:]) / missing
    copies = int(np.count_nonzero(share >= top - _SAME))
    worth = users / (copies + 1) * less
    cost = price[near] * np.minimum(1.0, missing / np.maximum(1.0 - has, _SAME))
    invested = np.zeros(len(price))
    invested[near] = np.where(gains, np.minimum(worth, cost), 0.0)
    return invested
