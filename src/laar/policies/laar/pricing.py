"""The formula of the cost, vectorized over the candidates.

The symbols are those of `laar.policies.laar.outlook` and of docs/concepts.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from laar.core.cost import AIMS, FIRST, AimName, Price
from laar.core.interfaces import View
from laar.fleet.endpoints import EndpointTable, Floats, Slots
from laar.speeds.engine_model import EndpointConstants
from laar.speeds.engines import Engines
from laar.speeds.traffic import ASKED, FEW_CAME, RATE_S, Traffic

MAX_LOAD = 0.8
"""Cap on the load: busy periods grow without bound as the load nears 1, and estimates are rough."""

AFTER = 0.1
"""Weight of what company adds after a first token, in overload (1 while nothing prefills)."""

# These are arrays because numpy takes 1.5 times as long with Python numbers, which matters while
# there are few endpoints.
_ZERO, _HALF, _ONE, _FIRST, _AFTER = map(np.array, (0.0, 0.5, 1.0, FIRST, AFTER))
_MAX_LOAD, _FEW_CAME = map(np.array, (MAX_LOAD, FEW_CAME))
_AIMS = {name: tuple(map(np.array, (of.during, FIRST * of.coming))) for name, of in AIMS.items()}

PATIENT, URGENT = 0.05, 4.0
"""Weights of a second of waiting, before and after the client's objective has passed."""

_MOST_OVER = 10.0


class Backlog(NamedTuple):
    """The traffic of some endpoints, from `laar.speeds.traffic.ASKED`; arrays over them.

    Args:
        ahead_s: work of the prompts not yet prefilled, in seconds estimated by c(m).
        since: when the engine began the first of them.
        free_at: when the prompts whose first token the picker does not see will be done.
        load: recent work sent, in seconds estimated by c(m) per second.
        came: the number of requests that `load` is based on (see `FEW_CAME`).
    """

    ahead_s: Floats
    since: Floats
    free_at: Floats
    load: Floats
    came: Floats

    def seconds_ahead(self, now: Floats | float, c: Floats) -> Floats:
        """Return the work of prompts not yet prefilled, in seconds estimated by c(m).

        Args:
            now: the current time, or a time for each endpoint.
            c: the `c` of the engines' constants.
        """
        begun_s = np.maximum(now - self.since, _ZERO)
        hidden_s = np.maximum(self.free_at - now, _ZERO)
        left_s: Floats = np.maximum(self.ahead_s - begun_s / c, _ZERO) + hidden_s / c
        return left_s


@dataclass(slots=True, kw_only=True)
class PricingInputs:
    """The inputs to the prices of one request; arrays over the candidates.

    Args:
        aim: what a busy fleet should keep short.
        now: the time at which the request arrives there.
        objective_s: seconds from `now` to the client's objective for the first token, or None.
        tokens: tokens of the prompt.
        cached_tokens: how many of them are probably cached.
        seconds_per_token: c(m).
        in_flight: n, the requests in flight there.
        answers: how many answers the request asks for; each of them slows all others.
        rtt_s: seconds on the network (`View.wire_s`).
        again: r, text evicted from its cache that is requested again, as a share of the uncached
            tokens; None if caches have room.
        crowded: cache tokens missing for the prompt, as a share of those in flight; above 1 if all
            requests in flight have to end, and others after them. None if caches have room.
        engine: the constants of its engine.
        backlog: the traffic that was sent to it.
        rate: requests per second that reach an endpoint.
        mean_work_s: c(m)'s mean estimate for a prompt, in seconds.
    """

    aim: AimName
    now: Floats | float
    objective_s: Floats | float | None
    tokens: Floats
    cached_tokens: Floats
    seconds_per_token: Floats
    in_flight: Floats
    rtt_s: Floats
    again: Floats | None
    crowded: Floats | None
    engine: EndpointConstants
    backlog: Backlog
    rate: float
    mean_work_s: float
    answers: int = 1


def backlog_of(traffic: Traffic, slots: Slots, now: float) -> Backlog:
    """Return the traffic of some endpoints."""
    rows: Floats = traffic.rows[ASKED].take(slots, axis=1)
    recent = rows[-2:]  # `load` and `came`
    recent *= math.exp(min(0.0, traffic.load_from - now) / RATE_S)
    return Backlog(*rows)


def crowded(engines: Engines, table: EndpointTable, slots: Slots, tokens: Floats) -> Floats | None:
    """Return the cache tokens missing for prompts of `tokens`, as a share of those in flight.

    That share of the running requests must end first. There is one value per endpoint, at most
    `_MOST_OVER`; None if all their caches have room.
    """
    per_token = engines.batches.cache_tokens_per_token
    held, room = per_token * table.queued_tokens[slots], table.capacity_tokens[slots]
    over = held + per_token * tokens - room
    if not np.count_nonzero(over > 0.0):  # NaN (unknown cache size) compares false
        return None
    return np.minimum(np.fmax(over, 0.0) / np.fmax(np.fmin(held, room), 1.0), _MOST_OVER)


def inputs_of(view: View, engines: Engines, aim: AimName) -> PricingInputs:
    """Gather the inputs to the prices of a view's candidates."""
    slots, table, traffic, now = view.slots, view.table, engines.traffic, view.now
    engine = engines.kept
    if not (
        engine is not None
        and engine.of is slots
        and engine.model_id is view.model_id
        and engine.models is table.models
        and engines.batches.readings == table.readings
    ):
        engine = engines.constants(slots, view.model_id)
    backlog = backlog_of(traffic, slots, now)
    faded = math.exp(min(0.0, traffic.arrived_at - now) / RATE_S)
    rate, load = traffic.rate_of_all * faded, traffic.load_of_all * faded
    mean_work_s = load / rate if rate > 0.0 else 0.0
    in_flight = view.in_flight
    if table.unseen is not None:
        unseen = table.unseen[slots]
        in_flight = in_flight + unseen
        backlog = backlog._replace(ahead_s=backlog.ahead_s + unseen * mean_work_s)
    return PricingInputs(
        aim=aim,
        now=now,
        objective_s=view.request.ttft_objective_s,
        tokens=view.tokens,
        cached_tokens=view.cached_tokens,
        seconds_per_token=view.seconds_per_token,
        in_flight=in_flight,
        rtt_s=view.wire_s,
        again=view.again,
        crowded=crowded(engines, table, slots, view.tokens),
        engine=engine,
        backlog=backlog,
        rate=rate / (len(set(slots.tolist())) if table.model_of else len(slots)),
        mean_work_s=mean_work_s,
        answers=view.request.answers,
    )


def price(of: PricingInputs) -> Price:
    """Return the price of the request at each candidate."""
    engine, backlog, rtt = of.engine, of.backlog, of.rtt_s
    during, coming = _AIMS[of.aim]
    s, w, b, c = engine.s, engine.w, engine.b, engine.c
    base = engine.base_s + engine.e * of.seconds_per_token * of.tokens
    n = of.in_flight
    prefill = c * of.seconds_per_token * (of.tokens - of.cached_tokens)
    context = _HALF * (of.tokens + of.cached_tokens)  # mean, of the uncached tokens
    prefill = prefill * (_ONE + engine.q * context)
    wait = ahead = engine.cw * backlog.seconds_ahead(of.now, c)
    full = None
    if of.crowded is not None or engine.ever_full:
        n, wait, full = _wait_for_room(of, base, wait)
    # If few requests arrived, this is mostly the mean over all endpoints.
    mean_load = float(np.add.reduce(backlog.load)) / len(backlog.load)
    load = (backlog.load * backlog.came + FEW_CAME * mean_load) / (backlog.came + _FEW_CAME)
    idle = _ONE - np.minimum(_MAX_LOAD, engine.cw * load)
    busy = min(1.0, mean_load / MAX_LOAD)  # aims matter under load
    after, during = _ONE - (_ONE - _AFTER) * busy, _ONE - (_ONE - during) * busy
    slower, beside, half_prefill = s * n, b * n, _HALF * prefill
    slowed_prefill = prefill * slower
    answer = engine.answer_s + beside
    if of.answers > 1:  # they slow each other, too
        answer, beside = answer + b * (of.answers - 1), of.answers * beside
    answer = answer / idle
    alone = base + prefill + slowed_prefill
    first = alone + wait

    later = of.rate * (w * (wait + half_prefill) / idle + s * half_prefill)
    work = prefill * (during * (slower + w * n) + coming * later)
    once = prefill + slowed_prefill
    evicted = np.zeros(len(n))
    if (r := of.again) is not None:
        evicted = r * (_FIRST * once + work)
        work = work + evicted
    beside = after * beside
    others = work + beside if full is None else work + beside + FIRST * full

    # If there is an objective, it determines the weight of the round trip and the wait.
    delay = rtt + wait
    if of.objective_s is not None:
        late = np.minimum(np.maximum(rtt + first - of.objective_s, 0.0), delay)
        delay = PATIENT * (delay - late) + URGENT * late
    own = _FIRST * (alone + delay) + engine.answer_s + after * (answer - engine.answer_s)
    fixed = base + engine.answer_s
    ttft = rtt + first
    return Price(
        base_s=fixed,
        prefill_s=prefill,
        ahead_s=ahead,
        queue_s=first + answer - (fixed + prefill),
        ttft_s=ttft,
        latency_s=ttft + answer,
        own_s=own,
        others_s=others,
        total_s=own + others,
        copy_s=once + work,
        evicted_s=evicted,
    )


def _wait_for_room(of: PricingInputs, base: Floats, wait: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the requests that run at full engines, the wait there, and what others wait for it.

    It is for a slot or for cache room, until enough of the requests in flight have ended.
    """
    engine = of.engine
    over = np.maximum(of.in_flight + of.answers - engine.slots, 0.0)
    n = np.minimum(of.in_flight, engine.slots)
    prefill = engine.c * of.mean_work_s * (1.0 + engine.s * n)
    life = base + prefill + engine.answer_s + 2.0 * engine.b * n
    queued = over * life / engine.slots
    for_cache = 0.0 if of.crowded is None else of.crowded * life
    full = queued * (MAX_LOAD / (1.0 - MAX_LOAD)) + for_cache  # equals 4 * queued + for_cache
    return n, wait + queued + for_cache, full


@dataclass(slots=True)
class RequestPricing:
    """The price of a request, for plug-ins that change it (`laar.core.plugin.Pricing`).

    Args:
        inputs: the inputs to the price.
        price: the price so far.
        engines: the learned constants of engines.
    """

    inputs: PricingInputs
    price: Price
    engines: Engines

    def again(self, *, cached_tokens: Floats, after_s: Floats) -> Price:
        """Return the price with other cached tokens, if the request begins `after_s` later.

        What was not cached before evicts as much other text as if it were computed.
        """
        of, alone = self.inputs, self.price
        objective_s = of.objective_s
        then = price(
            replace(
                of,
                cached_tokens=np.minimum(cached_tokens, of.tokens),
                objective_s=None if objective_s is None else np.maximum(objective_s - after_s, 0.0),
            )
        ).delayed(after_s)
        evicted_s = alone.evicted_s - then.evicted_s
        return then._replace(
            others_s=then.others_s + evicted_s,
            total_s=then.total_s + evicted_s,
            copy_s=then.copy_s + after_s,
            evicted_s=alone.evicted_s,
        )

    def prefilled(self, slots: Slots, **of: Any) -> Price:
        """Return the price of the prompt at other endpoints, as that of a one-token answer.

        Args:
            slots: the endpoints.
            of: the inputs that differ from the candidates'.
        """
        none, traffic, now = np.zeros(len(slots)), self.engines.traffic, float(self.inputs.now)
        # A prefill for another endpoint does not wait for a batch slot.
        constants = self.engines.constants(slots)
        lone = replace(constants, answer_s=none, b=none, slots=none + np.inf)
        backlog, rate = backlog_of(traffic, slots, now), traffic.rates(slots, now).mean().item()
        own = {"engine": lone, "backlog": backlog, "rate": rate, **of}
        return price(replace(self.inputs, rtt_s=none, crowded=None, **own))

    def pair(self, then_s: Floats, cost_s: Floats, reading: Price, transfer_s: Floats) -> Price:
        """Return the price of each candidate with its prefiller: the answer alone plus the prefill.

        Args:
            then_s: seconds until the first prefiller is done.
            cost_s: the cost of the prefill.
            reading: its price.
            transfer_s: seconds to fetch the KV.
        """
        inputs, objective_s, alone = self.inputs, self.inputs.objective_s, self.price
        written = price(
            replace(
                inputs,
                cached_tokens=inputs.tokens,
                now=inputs.now + then_s + transfer_s,
                objective_s=None if objective_s is None else np.maximum(objective_s - then_s, 0.0),
            )
        )
        moved_s = reading.ttft_s + transfer_s
        own = written.own_s + FIRST * transfer_s + cost_s - reading.others_s
        others = written.others_s + alone.evicted_s + reading.others_s
        return Price(
            base_s=written.base_s + reading.base_s,
            prefill_s=reading.prefill_s,
            ahead_s=written.ahead_s,
            queue_s=written.queue_s + reading.queue_s,
            ttft_s=written.ttft_s + moved_s,
            latency_s=written.latency_s + moved_s,
            own_s=own,
            others_s=others,
            total_s=own + others,
            copy_s=np.zeros(len(inputs.tokens)),
            evicted_s=alone.evicted_s,
        )
