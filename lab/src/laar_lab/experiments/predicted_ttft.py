"""Errors of the predicted time to the first token, by fleet and traffic.

Real chats arrive in an open loop, and real sessions of coding agents run in a closed one. Only the
half of the sessions reserved for verdicts is used. In some fleets, two kinds of engine serve the
same model name, and the picker must discover this. The first minute is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from laar_lab.claims import Seen, level
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    Site,
    VirtualFleet,
    generator,
    hold_sessions,
)
from laar_lab.sim.fleet.clients import replay_open
from laar_lab.suite import fleets
from laar_lab.suite.real import agents, day_chats
from laar_lab.sweep import grid

_UNTIL_S, _UNCOUNTED_S = 300.0, 60.0


def _of_two(first: str, firsts: int, second: str, seconds: int) -> list[Site]:
    """Return endpoints of two kinds that serve the same model name."""
    sites = fleets.of_one(first, firsts)
    others = fleets.of_one(second, seconds)
    named = [
        replace(site, name=f"second-{at}", model=sites[0].model) for at, site in enumerate(others)
    ]
    return [*sites, *named]


FLEETS: Mapping[str, tuple[Callable[[], list[Site]], float, int]] = {
    "8 A100": (partial(fleets.of_one, "llama-3-8b-a100", 8), 8.0, 24),
    "8 in parallel": (partial(fleets.parallel, 8), 8.0, 24),
    "5 and 3, 8B and 14B": (
        partial(_of_two, "llama-3-8b-a100", 5, "qwen2.5-14b-a100", 3),
        6.0,
        20,
    ),
    "3 H100 and 5 A100": (partial(_of_two, "llama-3-8b-h100", 3, "llama-3-8b-a100", 5), 9.0, 28),
    "8 H100, tokenizing": (
        lambda: fleets.tokenizing(fleets.of_one("llama-3-8b-h100", 8)),
        16.0,
        48,
    ),
    "4 and 4 slow": (partial(fleets.mixed_devices, "gorgo-main", 4, 4, 2.5), 5.0, 20),
}
"""Endpoints, chats per second, and concurrent agents: about half of each fleet's capacity."""


def run_predicted(data: Path, name: str, traffic: str, seed: int) -> dict[str, float]:
    """Return the errors of one run, as shares of the measured times."""
    build, chats_per_s, at_once = FLEETS[name]
    fleet = VirtualFleet(build(), FleetSettings(), seed=seed, assessor=fleets.nothing([]))
    seen: list[tuple[float, float]] = []

    def ended(_arrival: Arrival, exchange: Exchange) -> None:
        view = exchange.decision.view
        if exchange.status != 200 or exchange.sent_s < _UNCOUNTED_S or view is None:
            return
        assert view.terms is not None
        assert view.terms.ttft_s is not None
        predicted_s = view.terms.ttft_s.item(exchange.decision.position)
        seen.append((predicted_s, exchange.first_s - exchange.sent_s))

    rng = generator(seed, "predicted")
    if traffic == "agents":
        sessions = agents(data, 1)(rng)
        hold_sessions(fleet, sessions, ended, at_once=at_once, ramp_s=60.0, until_s=_UNTIL_S)
    else:
        replay_open(fleet, day_chats(data, chats_per_s, rng, _UNTIL_S), ended)
    predicted_s, seen_s = np.array(seen).T
    error = np.abs(predicted_s / seen_s - 1.0)
    return {
        "error_p50": float(np.median(error)),
        "error_p90": float(np.percentile(error, 90)),
    }


def run(scope: Scope) -> Report:
    """Compare predicted with measured times on each fleet, for chats and for agents."""
    assert scope.data is not None
    names = list(FLEETS)[1:3] if scope.quick else list(FLEETS)
    cases = {
        (name, traffic): (scope.data, name, traffic)
        for name in names
        for traffic in ("chats", "agents")
    }
    runs = grid(run_predicted, cases, scope.seeds, label="predicted-ttft")

    def each(number: str) -> dict[str, Seen]:
        return {", ".join(case): level(rows, number) for case, rows in runs.items()}

    evidence = {"median": each("error_p50"), "p90": each("error_p90")}
    return Report(evidence=evidence)


EXPERIMENTS = declared(__name__, {"predicted-ttft": run})
