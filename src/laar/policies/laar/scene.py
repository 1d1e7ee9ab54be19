"""The inputs to the prices of one decision: candidates, fleet, and learned engine models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laar.core.cost import CostWeights
from laar.core.endpoints import Floats
from laar.core.engine_model import EndpointConstants
from laar.core.engines import Engines
from laar.core.interfaces import View
from laar.policies.laar.pricing import Candidate, Fleet

_FAR_S = 1e15  # clocks that jump stay numbers


@dataclass(slots=True)
class Scene:
    """The inputs to the prices of one decision.

    Args:
        view: the view of the candidates.
        engines: the learned models of engines.
        constants: the constants of the candidates' engines.
        fleet: the values that all candidates share.
        candidates: the columns of the price.
        now: the moment, a number in any case.
    """

    view: View
    engines: Engines
    constants: EndpointConstants
    fleet: Fleet
    candidates: Candidate[Floats]
    now: float


def scene_of(view: View, weights: CostWeights) -> Scene:
    """Gathers the inputs to the prices of a view's candidates."""
    slots = view.slots
    now = max(-_FAR_S, min(view.now, _FAR_S)) if view.now == view.now else 0.0
    engines = view.engines or Engines(view.table)
    constants = engines.constants(slots, view.base_s, timed=view.timed_answers)
    asked, mean_load = engines.traffic.asked(slots, now)
    rate, load = engines.traffic.arrivals(now)
    crowded = engines.crowded(slots, view.tokens)
    mean_work_s = load / rate if rate > 0.0 else 0.0
    in_flight, ahead_s = view.in_flight, asked.ahead_s
    if view.table.unseen is not None:
        unseen = view.table.unseen[slots]
        in_flight, ahead_s = in_flight + unseen, ahead_s + unseen * mean_work_s
    fleet = Fleet(
        weights=weights,
        rate=rate / len(slots),
        mean_work_s=mean_work_s,
        ever_full=constants.ever_full or crowded is not None,
        mean_load=mean_load,
    )
    candidates = Candidate(
        tokens=view.tokens,
        cached_tokens=view.cached_tokens,
        seconds_per_token=view.seconds_per_token,
        in_flight=in_flight,
        rtt_s=view.rtt_s,
        again=np.zeros(len(slots)) if view.again is None else view.again,
        crowded=np.zeros(len(slots)) if crowded is None else crowded,
        ahead_s=ahead_s,
        since=asked.since,
        free_at=asked.free_at,
        load=asked.load,
        came=asked.came,
        engine=constants,
    )
    return Scene(view, engines, constants, fleet, candidates, now)
