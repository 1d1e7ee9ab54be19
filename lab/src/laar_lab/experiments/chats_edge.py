"""Chats near saturation: the load that a rule can carry, and its recovery from a burst.

Conversations run in an open loop. A rule's edge is the load at which its p95 E2E reaches three
times the best rule's p95 at the lightest load, interpolated between the loads sent. The burst lasts
half a minute, at three times a moderate load; only the four minutes after it are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from random import Random

import numpy as np
from numpy.typing import NDArray

from laar_lab.claims import Evidence, Runs, Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report, means_table
from laar_lab.sim.fleet import Arrival, Site
from laar_lab.suite import fleets
from laar_lab.suite.case import Case, Numbers, Open, run_case
from laar_lab.sweep import grid
from laar_lab.workloads.sessions import GORGO_CHATS, ChatShape, chats

_MINUTES = 5.0
_BURST_FROM_S, _BURST_UNTIL_S, _BURST = 30.0, 60.0, 3.0
"""The burst ends when counting begins (`laar_lab.suite.case.UNCOUNTED_SHARE`)."""

FLEETS: Mapping[str, tuple[Callable[[], list[Site]], tuple[float, ...]]] = {
    "6 rooflines": (
        partial(fleets.of_one, "llama-3-8b-a100", 6),
        (3.0, 9.0, 10.0, 11.0, 12.0, 13.0),
    ),
    "6 side by side": (partial(fleets.parallel, 6), (3.0, 12.0, 14.0, 16.0, 18.0, 20.0)),
}
"""Endpoints and requests per second; the first load is light, the last two beyond saturation."""

_FAR = 3.0
"""p95 E2E at the edge, as a multiple of the p95 E2E at the lightest load."""

RULES = ("laar", "lmetric", "smg", "llm-d")
"""Our rule and its rivals."""


def _after_burst(shape: ChatShape, rng: Random, duration_s: float) -> Iterator[Arrival]:
    """Yield chats, with 90 s of their arrivals compressed into 30 s."""
    sooner_s = (_BURST - 1.0) * (_BURST_UNTIL_S - _BURST_FROM_S)
    for arrival in chats(shape, rng, duration_s + sooner_s):
        at_s = arrival.at_s
        if at_s > _BURST_FROM_S:
            at_s = max(_BURST_FROM_S + (at_s - _BURST_FROM_S) / _BURST, at_s - sooner_s)
        yield Arrival(at_s=at_s, prompt=arrival.prompt, session=arrival.session, kind=arrival.kind)


def run_edge(fleet: str, load: float, burst: bool, rule: str, minutes: float, seed: int) -> Numbers:
    """Run a rule on one of `FLEETS`."""
    shape = replace(GORGO_CHATS, requests_per_s=load, max_output_tokens=512)
    case = Case(
        name=f"{fleet}, {load:g}/s",
        about="chats",
        role="judge",
        fleet=FLEETS[fleet][0],
        load=Open(draw=partial(_after_burst if burst else chats, shape)),
        minutes=minutes,
    )
    return run_case(case, rule, seed)


_SHOWN = {
    "ttft_mean_s": "TTFT mean s",
    "ttft_p95_s": "p95",
    "e2e_mean_s": "E2E mean s",
    "e2e_p95_s": "p95",
    "hit_rate": "hit rate",
    "failed": "failed",
}


def run(scope: Scope) -> Report:
    """Run every rule at every load and after the burst, on each fleet."""
    minutes = 0.25 if scope.quick else _MINUTES
    cases = {}
    for fleet, (_, loads) in FLEETS.items():
        for load, rule in product(loads[: 2 if scope.quick else None], RULES):
            cases[fleet, f"{load:g}/s", rule] = (fleet, load, False, rule, minutes)
        for rule in RULES:
            cases[fleet, "after a burst", rule] = (fleet, loads[1] / 2, True, rule, minutes)
    runs = grid(run_edge, cases, scope.seeds, label="chats-edge")
    table = means_table("chats", ("fleet", "load", "rule"), runs, _SHOWN)
    return Report(tables=[table], evidence={} if scope.quick else _evidence(runs))


def _evidence(runs: Mapping[tuple[str, str, str], Runs]) -> Evidence:
    evidence: dict[str, dict[str, Seen]] = {"edge": {}, "first-tokens": {}, "past": {}, "burst": {}}
    for (fleet, (_, loads)), rival in product(FLEETS.items(), RULES[1:]):

        def compared(sent: str, name: str, fleet: str = fleet, rival: str = rival) -> Seen:
            return paired(runs[fleet, sent, "laar"], runs[fleet, sent, rival], name)

        part = f"{fleet}, {rival}"
        evidence["edge"][part] = Seen(_edges(runs, fleet, "laar"), _edges(runs, fleet, rival))
        evidence["burst"][part] = compared("after a burst", "e2e_mean_s")
        for load in loads[1:]:
            claim, name = ("first-tokens", "ttft_mean_s")
            if load > loads[-3]:
                claim, name = ("past", "e2e_mean_s")
            evidence[claim][f"{part}, {load:g}/s"] = compared(f"{load:g}/s", name)
    return evidence


def _edges(runs: Mapping[tuple[str, str, str], Runs], fleet: str, rule: str) -> list[float]:
    """Return the highest load that a rule carries, by seed; the last load if it carries all."""
    loads = FLEETS[fleet][1]

    def logs(rule: str, load: float) -> NDArray[np.float64]:
        return np.log([run["e2e_p95_s"] for run in runs[fleet, f"{load:g}/s", rule]])

    limits = np.min([logs(rule, loads[0]) for rule in RULES], axis=0) + np.log(_FAR)
    p95 = np.array([logs(rule, load) for load in loads])
    edges = []
    for column, limit in zip(p95.T, limits, strict=True):
        over = int(np.argmax(column > limit))
        if over == 0:
            edges.append(loads[-1])
        else:
            edges.append(
                float(np.interp(limit, column[over - 1 : over + 1], loads[over - 1 : over + 1]))
            )
    return edges


EXPERIMENTS = declared(__name__, {"chats-edge": run})
