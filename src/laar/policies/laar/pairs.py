"""Prices of prompts that another endpoint reads: of pairs of a prefiller and a candidate.

A pair costs `own + others` of an answer of one token at the prefiller, and the same of an answer
without a prompt where it is written, with the queue there by then. The time of the first prefiller
of the kin to be ready stands for `then`: so the two are a sum, and the cheapest prefiller is the
cheapest for every candidate (`laar.core.apart.cheapest`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from laar.core.apart import Apart, cheapest
from laar.core.cost import MIN_PROBABILITY
from laar.core.endpoints import Floats, Mask, Slots
from laar.policies.laar.pricing import FIRST, Candidate, Price, price
from laar.policies.laar.scene import Scene


def read_elsewhere(scene: Scene, apart: Apart, alone: Price[Floats]) -> Price[Floats]:
    """The prices again, those of pairs where a candidate had better not read the prompt.

    Sets in `apart` the prefiller that each candidate is priced with, and the seconds it saves.

    Args:
        scene: the inputs to the prices.
        apart: the prefillers.
        alone: the prices of candidates that read the prompt themselves.
    """
    count = len(scene.view.slots)
    if not len(apart.of.slots):  # those there are, are out
        apart.chosen, apart.transfer_s = np.full(count, -1), np.zeros(count)
        return alone
    visit = _visit(scene, apart)
    transfer_s = apart.transfer_s_per_token * (scene.view.tokens - scene.view.cached_tokens)
    pair = _pair(scene, visit, transfer_s, alone)
    taken = _taken(scene, apart, visit.can, pair, alone)
    saved_s = np.where(taken, alone.total_s - pair.total_s, pair.total_s - alone.total_s)
    apart.chosen = np.where(taken, visit.chosen, -1)
    apart.transfer_s = np.where(taken, transfer_s, 0.0)
    apart.saved_s = np.where(visit.can, saved_s, 0.0)
    return Price._make(np.where(taken, one, other) for one, other in zip(pair, alone, strict=True))


@dataclass(slots=True, kw_only=True)
class _Visit:
    """The prefiller that would read each candidate's prompt; arrays over the candidates.

    Args:
        chosen: position of the prefiller; -1 where there is none of the candidate's kin.
        can: there is one.
        then_s: seconds until the first prefiller of its kin is ready.
        cost_s: weighted seconds of reading it at the chosen one.
        at: the other prices there.
    """

    chosen: Slots
    can: Mask
    then_s: Floats
    cost_s: Floats
    at: Price[Floats]


def _visit(scene: Scene, apart: Apart) -> _Visit:
    """Prices an answer of one token at the prefillers, and takes each candidate's cheapest."""
    helpers = apart.of
    there = _at_prefillers(scene, apart)
    cost = there.total_s
    if helpers.answers is not None:
        cost = cost / np.maximum(helpers.answers, MIN_PROBABILITY)
    chosen = cheapest(cost, helpers, scene.view.slots)
    can = chosen >= 0
    at = np.where(can, chosen, 0)
    soonest = np.full(1 + int(helpers.kin.max(initial=0)), np.inf)
    np.minimum.at(soonest, helpers.kin, there.ttft_s)
    then_s = np.where(can, soonest[helpers.kin[at]], 0.0)
    here: Price[Floats] = Price._make(column[at] for column in there)
    return _Visit(chosen=chosen, can=can, then_s=then_s, cost_s=cost[at], at=here)


def _at_prefillers(scene: Scene, apart: Apart) -> Price[Floats]:
    """The price of the prompt at each prefiller, as an answer of one token; arrays over those."""
    slots, engines = apart.of.slots, scene.engines
    none = np.zeros(len(slots))
    constants = engines.constants(slots, apart.base_s, timed=scene.view.timed_answers)
    asked, mean_load = engines.traffic.asked(slots, scene.now)
    readers = Candidate(
        tokens=apart.tokens,
        cached_tokens=apart.cached_tokens,
        seconds_per_token=apart.seconds_per_token,
        in_flight=apart.decoding,
        rtt_s=none,
        again=none if apart.again is None else apart.again,
        crowded=none,
        ahead_s=asked.ahead_s,
        since=asked.since,
        free_at=asked.free_at,
        load=asked.load,
        came=asked.came,
        engine=constants._replace(answer_s=none, beside_s=none),
    )
    rate = engines.traffic.visits(slots, scene.now)
    visits = replace(scene.fleet, rate=rate, mean_load=mean_load, ever_full=False)
    return price(visits, readers, scene.now, scene.view.request.ttft_objective_s)


def _pair(scene: Scene, visit: _Visit, transfer_s: Floats, alone: Price[Floats]) -> Price[Floats]:
    """The price of each candidate with its prefiller: an answer without a prompt, and the visit."""
    view, reading = scene.view, visit.at
    objective_s: Floats | None = None
    if view.request.ttft_objective_s is not None:
        objective_s = np.maximum(view.request.ttft_objective_s - visit.then_s, 0.0)
    writers = scene.candidates._replace(cached_tokens=view.tokens)
    now = scene.now + visit.then_s + transfer_s
    written = price(scene.fleet, writers, now, objective_s)
    moved_s = reading.ttft_s + transfer_s
    own = written.own_s + FIRST * transfer_s + visit.cost_s - reading.others_s
    evicted = scene.fleet.weights.k_delay * alone.evicted_s
    others = written.others_s + evicted + reading.others_s
    return Price(
        base_s=written.base_s + reading.base_s,
        read_s=reading.read_s,
        queue_s=written.queue_s + reading.queue_s,
        ttft_s=written.ttft_s + moved_s,
        latency_s=written.latency_s + moved_s,
        own_s=own,
        others_s=others,
        total_s=own + others,
        copy_s=np.zeros(len(view.slots)),
        evicted_s=alone.evicted_s,
    )


def _taken(
    scene: Scene, apart: Apart, can: Mask, pair: Price[Floats], alone: Price[Floats]
) -> Mask:
    """The candidates whose prompt another endpoint is to read, by the rule."""
    match apart.rule:
        case "always":
            return can
        case "threshold":
            uncached = scene.view.tokens - scene.view.cached_tokens
            return can & (uncached >= apart.least_tokens)
        case _:
            return can & (pair.total_s < alone.total_s)
