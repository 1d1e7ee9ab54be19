"""The formula of the cost, for one candidate or for all of them at once.

See `laar.policies.laar.outlook` for the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

import numpy as np

from laar.core.cost import CostWeights
from laar.core.endpoints import Floats, N
from laar.core.engine_model import Constants
from laar.core.traffic import FEW_CAME, seconds_ahead

MAX_LOAD = 0.8
"""Busy periods grow without bound as an endpoint's load goes to 1; it is not known so well."""

FIRST = 2.0
"""Weight of a second before the first token: it counts for that token and for the end."""

PATIENT, URGENT = 0.05, 4.0
"""Weight of a second of waiting before the client's objective is over, and after."""


class _Bounds(NamedTuple, Generic[N]):
    """The smaller and the larger of two."""

    least: Callable[[N | float, N | float], N]
    most: Callable[[N | float, N | float], N]


_ONE: _Bounds[float] = _Bounds(min, max)
"""For numbers, of one candidate."""
_EACH: _Bounds[Floats] = _Bounds(np.minimum, np.maximum)
"""For arrays, of all candidates."""


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The values that all candidates share.

    Args:
        weights: weights of the round trip, of waiting and of the cost to others.
        rate: requests a second that come to an endpoint.
        mean_work_s: seconds of a prompt by c(m).
        ever_full: an engine or its cache was seen full.
        mean_load: seconds of prompts (by c(m)) that an endpoint is sent a second.
    """

    weights: CostWeights
    rate: float
    mean_work_s: float
    ever_full: bool
    mean_load: float


class Candidate(NamedTuple, Generic[N]):
    """The inputs to the price of one candidate, or of all: then each is an array over them.

    Args:
        tokens: tokens of the prompt.
        cached_tokens: the part of them that is probably cached.
        seconds_per_token: c(m).
        in_flight: requests in flight there.
        rtt_s: round trip.
        again: share of the text evicted from its cache that is requested again.
        crowded: cache tokens missing for the prompt, as a share of those in flight; above 1 where
            they all have to end, and others after them.
        ahead_s, since, free_at, load, came: the fields of `laar.core.traffic.Asked`.
        engine: the constants of its engine.
    """

    tokens: N
    cached_tokens: N
    seconds_per_token: N
    in_flight: N
    rtt_s: N
    again: N
    crowded: N
    ahead_s: N
    since: N
    free_at: N
    load: N
    came: N
    engine: Constants[N]


class Price(NamedTuple, Generic[N]):
    """The seconds of a request at a candidate, or at all: then each is an array over them.

    Args:
        base_s: seconds that do not grow with the prompt, to the end of the answer.
        read_s: seconds to read the uncached tokens.
        queue_s: seconds of delay by the others there, before the first token and after.
        ttft_s: seconds to the first token.
        latency_s: seconds to the end of the answer.
        own_s: weighted seconds of the request itself.
        others_s: weighted seconds of the other requests.
        total_s: the sum of both.
        copy_s: the part of it that a copy of the prompt there costs.
        evicted_s: the part of the others' seconds for the text that the prompt evicts.
    """

    base_s: N
    read_s: N
    queue_s: N
    ttft_s: N
    latency_s: N
    own_s: N
    others_s: N
    total_s: N
    copy_s: N
    evicted_s: N


def price(
    fleet: Fleet, of: Candidate[Floats], now: Floats | float, objective_s: Floats | float | None
) -> Price[Floats]:
    """The price of a request at all candidates.

    Args:
        fleet: the values that all candidates share.
        of: the candidates.
        now: when the request comes there.
        objective_s: how soon the client wants its first token after that; None for no objective.
    """
    return Price(*_formula(_EACH, fleet, now, objective_s, *of))


def price_few(
    fleet: Fleet,
    of: Candidate[Floats],
    engines: Sequence[Constants[float]],
    now: float,
    objective_s: float | None,
) -> Price[Floats]:
    """The same one by one: for few candidates, arrays cost more. `engines` are those of `of`."""
    columns = [column.tolist() for column in of[:-1]]
    rows = zip(*columns, engines, strict=True)
    return Price(*np.array([_formula(_ONE, fleet, now, objective_s, *row) for row in rows]).T)


def _formula(
    bounds: _Bounds[N],
    fleet: Fleet,
    now: N | float,
    objective_s: N | float | None,
    # The fields of `Candidate`, in their order.
    tokens: N,
    cached_tokens: N,
    seconds_per_token: N,
    in_flight: N,
    rtt_s: N,
    again: N,
    crowded: N,
    ahead_s: N,
    since: N,
    free_at: N,
    load: N,
    came: N,
    engine: Constants[N],
) -> tuple[N, N, N, N, N, N, N, N, N, N]:
    """The fields of `Price`, in their order.

    By the letters of `laar.policies.laar.outlook`: `slows` is s, `turns` is w, `again` is r, and
    `beside_s` is 2 b.

    To make a `Candidate` and a `Price` for each candidate takes 3 % of a decision. So here alone
    fields go by their order, those of `Constants` as well; `tests/core/test_pricing.py` checks it.
    """
    least, most = bounds
    weights, n = fleet.weights, in_flight
    base, reads, slows, waits, turns, alone_s, beside_s, bend, places = engine
    read = reads * seconds_per_token * (tokens - cached_tokens)
    read = read * (1.0 + 0.5 * bend * (tokens + cached_tokens))
    queued: N | float = 0.0
    room_s: N | float = 0.0
    if fleet.ever_full:  # the wait for a place, or for room in the cache
        over = most(n + 1.0 - places, 0.0)
        n = least(n, places)
        slower = 1.0 + slows * n
        life_s = base + reads * fleet.mean_work_s * slower + alone_s + beside_s * n
        queued = over * life_s / places
        room_s = crowded * life_s
    slowed = slows * n
    beside = 0.5 * beside_s * n
    wait = waits * seconds_ahead(most, ahead_s, since, free_at, now, reads) + queued + room_s
    # Where few requests came, mostly the average over all endpoints.
    load = (load * came + FEW_CAME * fleet.mean_load) / (came + FEW_CAME)
    idle = 1.0 - least(MAX_LOAD, waits * load)
    answer = (alone_s + beside) / idle
    alone = base + read + read * slowed
    first = alone + wait

    # The cost to the others.
    later = fleet.rate * (turns * (wait + 0.5 * read) / idle + 0.5 * slows * read)
    work = read * (slowed + turns * n + FIRST * later)
    evicted = again * (FIRST * (read + read * slowed) + work)
    work = work + evicted
    full_s = queued * (MAX_LOAD / (1.0 - MAX_LOAD)) + room_s
    others = weights.k_delay * (work + beside + FIRST * full_s)

    # The way there and the wait weigh by the objective, where there is one.
    way = weights.k_rtt * rtt_s + weights.k_queue * wait
    if objective_s is not None:
        late = least(most(rtt_s + first - objective_s, 0.0), rtt_s + wait)
        way = PATIENT * (way - late) + URGENT * late
    own = FIRST * (alone + way) + answer
    fixed = base + alone_s
    ttft = rtt_s + first
    copy = read + read * slowed + work
    queue = first + answer - (fixed + read)
    return fixed, read, queue, ttft, ttft + answer, own, others, own + others, copy, evicted
