"""Costs of disaggregated prefill: of KV from another endpoint.

A pair of a prefiller and a candidate costs `own + others` of a one-token answer at the prefiller,
plus the same sum for an answer without a prompt at the candidate, with the queue expected when the
earliest prefiller of the KV group is done. As this time is the same for all pairs, their cost is a
plain sum, and the cheapest prefiller is the same for every candidate
(`laar.core.apart.cheapest`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from laar.core.apart import Apart, cheapest
from laar.core.cost import FIRST, MIN_PROBABILITY, Price
from laar.core.interfaces import View
from laar.fleet.endpoints import Floats
from laar.policies.laar.pricing import PricingInputs, asked_of, price
from laar.speeds.engines import Engines


def read_elsewhere(
    apart: Apart, view: View, engines: Engines, inputs: PricingInputs, alone: Price
) -> tuple[Price, Floats]:
    """Return the prices: the pair's where `apart.rule` prefers it to the candidate alone.

    Also return the time that each candidate takes to fetch the KV; 0 where it prefills itself.
    Store in `apart` the prefiller that each price assumes and what it saves.

    Args:
        apart: the prefillers.
        view: the view of the candidates.
        engines: the learned models of engines.
        inputs: the inputs to the candidates' prices.
        alone: the prices of candidates that prefill themselves.
    """
    helpers = apart.of
    there = _at_prefillers(apart, view, engines, inputs)
    cost = there.total_s / np.maximum(helpers.answers, MIN_PROBABILITY)
    chosen = cheapest(cost, helpers, view.slots)
    taken = can = chosen >= 0
    at = np.where(can, chosen, 0)
    # Price the candidate's queue as of when the earliest prefiller of its group is done.
    soonest = np.full(1 + int(helpers.kv_group.max(initial=0)), np.inf)
    np.minimum.at(soonest, helpers.kv_group, there.ttft_s)
    then_s = np.where(can, soonest[helpers.kv_group[at]], 0.0)
    reading = Price._make(column[at] for column in there)
    uncached = view.tokens - view.cached_tokens
    transfer_s = apart.transfer_s_per_token * uncached
    pair = _pair(inputs, then_s, cost[at], reading, transfer_s, alone)
    match apart.rule:
        case "threshold":
            taken = can & (uncached >= apart.least_tokens)
        case "by-cost":
            taken = can & (pair.total_s < alone.total_s)
    saved_s = np.where(taken, alone.total_s - pair.total_s, pair.total_s - alone.total_s)
    apart.chosen = np.where(taken, chosen, -1)
    apart.saved_s = np.where(can, saved_s, 0.0)
    priced = (np.where(taken, apart_, alone_) for apart_, alone_ in zip(pair, alone, strict=True))
    return Price._make(priced), np.where(taken, transfer_s, 0.0)


def _at_prefillers(apart: Apart, view: View, engines: Engines, inputs: PricingInputs) -> Price:
    """Return the price of the prompt at each prefiller, as that of a one-token answer."""
    slots, now = apart.of.slots, float(inputs.now)
    none = np.zeros(len(slots))
    return price(
        replace(
            inputs,
            tokens=apart.tokens,
            cached_tokens=apart.cached_tokens,
            seconds_per_token=apart.seconds_per_token,
            in_flight=apart.decoding,
            rtt_s=none,
            again=apart.again,
            crowded=None,
            # A prefill for another endpoint does not wait for a batch slot.
            engine=replace(engines.constants(slots), answer_s=none, b=none, slots=none + np.inf),
            asked=asked_of(engines.traffic, slots, now),
            rate=engines.traffic.visits(slots, now),
        )
    )


def _pair(
    inputs: PricingInputs,
    then_s: Floats,
    cost_s: Floats,
    reading: Price,
    transfer_s: Floats,
    alone: Price,
) -> Price:
    """Return the price of each candidate with its prefiller: the answer alone plus the prefill."""
    objective_s = inputs.objective_s
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
    evicted = inputs.weights.k_delay * alone.evicted_s
    others = written.others_s + evicted + reading.others_s
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
