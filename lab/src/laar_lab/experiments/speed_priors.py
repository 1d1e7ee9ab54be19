"""The value of knowing engines' speeds before they have answered.

Chats arrive at a cold fleet. The picker knows nothing about the engines, their speeds as measured
when idle, or these speeds times four or a quarter: about what could be inferred from a model's
size, since device, quantization and parallelism are unknown. In one fleet a small, a medium and a
large model may all answer; in the other all engines are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from laar.accuracy.capability import SpeedPrior
from laar.core.request import Api, Request
from laar_lab.claims import Runs, Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report, means_table
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    MeasuredAssessor,
    Site,
    VirtualFleet,
    generator,
    replay_open,
)
from laar_lab.suite import fleets
from laar_lab.sweep import grid
from laar_lab.workloads.sessions import GORGO_CHATS, chats

_UNTIL_S, _START_S = 120.0, 20.0
_ERROR = 0.25  # of a measured speed, relative
_MODELS, _EQUAL = "three models", "one model"
_FLEETS: Mapping[str, tuple[Callable[[], list[Site]], float]] = {
    _MODELS: (fleets.mixed_models, 5.0),
    _EQUAL: (partial(fleets.of_one, "llama-3-8b-h100", 8), 40.0),
}
"""Endpoints, and chats per second. The default prior is four times too slow for the equal ones."""

_FACTORS: Mapping[str, float | None] = {
    "nothing": None,
    "measured": 1.0,
    "four times as slow": 4.0,
    "four times as fast": 0.25,
}
_SHOWN = {
    "ttft_start_s": "mean TTFT, first 20 s",
    "e2e_start_s": "mean E2E",
    "ttft_s": "mean TTFT, later",
    "e2e_s": "mean E2E",
}


def run_prior(fleet_name: str, knowledge: str, seed: int) -> dict[str, float]:
    """Return the mean times of one run, at its start and later."""
    build, chats_per_s = _FLEETS[fleet_name]
    sites, factor = build(), _FACTORS[knowledge]
    assessor = fleets.nothing(sites)
    if factor is not None:
        models = sorted({site.model for site in sites})
        assessor = fleets.WrongSpeeds(MeasuredAssessor(sites), dict.fromkeys(models, factor))
    fleet = VirtualFleet(sites, FleetSettings(), seed=seed, assessor=assessor)
    if factor is not None:  # as a picker does that has read an artifact
        known = assessor.assess(Request(id="", api=Api.CHAT, model=""), models, (), 0.0)
        priors = {
            model: SpeedPrior(per_token, _ERROR, start_s)
            for model, per_token, start_s in zip(
                models, known.seconds_per_token.tolist(), known.base_s.tolist(), strict=True
            )
        }
        fleet.director.engines.reassess(priors.__getitem__)
    seen: list[tuple[float, float, float]] = []

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        if exchange.status == 200:
            at_s = arrival.at_s
            seen.append((at_s, exchange.first_s - at_s, exchange.end_s - at_s))

    shape = replace(GORGO_CHATS, requests_per_s=chats_per_s)
    replay_open(fleet, chats(shape, generator(seed, "speed-priors"), _UNTIL_S), ended)
    at_s, ttft_s, e2e_s = np.array(seen).T
    start = at_s < _START_S
    return {
        "ttft_start_s": float(ttft_s[start].mean()),
        "e2e_start_s": float(e2e_s[start].mean()),
        "ttft_s": float(ttft_s[~start].mean()),
        "e2e_s": float(e2e_s[~start].mean()),
    }


def run(scope: Scope) -> Report:
    """Compare runs with and without knowledge of the speeds, on both fleets."""
    names = (_MODELS,) if scope.quick else tuple(_FLEETS)
    cases = {(fleet, knowledge): (fleet, knowledge) for fleet in names for knowledge in _FACTORS}
    runs = grid(run_prior, cases, scope.seeds, label="speed-priors")
    title = "chats on a cold fleet, s"
    table = means_table(title, ("fleet", "known speeds"), runs, _SHOWN, digits=3)

    def compared(fleet: str, metric: str, *of: str) -> dict[str, Seen]:
        nothing: Runs = runs[fleet, "nothing"]
        return {name: paired(runs[fleet, name], nothing, metric) for name in of}

    evidence = {
        "start": compared(_MODELS, "ttft_start_s", "measured"),
        "later": compared(_MODELS, "ttft_s", "measured"),
        "rough": compared(_MODELS, "e2e_s", "four times as slow", "four times as fast"),
    }
    if _EQUAL in names:
        evidence["equal"] = compared(_EQUAL, "ttft_start_s", "measured")
    return Report(tables=[table], evidence=evidence)


EXPERIMENTS = declared(__name__, {"speed-priors": run})
