"""More agents than fit in the caches: throughput and times by rule, as load grows.

Real sessions of coding agents run as a closed loop on engines with small caches. The number of
sessions that fit is the fleet's KV divided by `SESSION_TOKENS`; the loads are multiples of it. All
rules get the same sessions, know the engines' cache sizes and use laar's prefix index.

Rules were chosen on one half of the sessions, by position in the file, and are judged on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from laar.core.cost import CostWeights
from laar.flow.settings import FlowSettings
from laar.policies import build_policies
from laar_lab.claims import Runs, Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.policy_text import parse_policy
from laar_lab.report import Report
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    Site,
    Turn,
    VirtualFleet,
    asking_again,
    generator,
    hold_sessions,
)
from laar_lab.suite import fleets
from laar_lab.suite.real import agents, short_agents
from laar_lab.sweep import grid

KV_TOKENS = 250_000
"""Size of each engine's cache in tokens."""

SESSION_TOKENS = 54_000
"""Mean context of a session during the run (decision 14)."""

LOADS = (0.75, 1.0, 1.5, 2.0, 3.0)
"""Numbers of concurrent sessions, as multiples of the number that fits in the caches."""

JUDGED_FROM = 70_000
"""From this seed on, runs use the half of the sessions reserved for the verdict."""

_UNTIL_S = 480.0
_GPU_UNTIL_S = 120.0
_GPU_FIT = 15  # sessions that fit in the caches
_UNCOUNTED_SHARE = 0.2
RULES = {
    "laar": "laar",
    "laar, gate": "laar",
    "least-loaded": "least-loaded",
    "vllm-router": "vllm-router",
    "smg": "smg",
    "smg-veto": "smg-veto",
    "sticky": "sticky-least-loaded",
    "dynamo": "dynamo",
    "dynamo, shared once": "dynamo:shared_weight=0",
}
"""Policies by name in the table; only `laar, gate` has flow control, with the session gate."""


class Turns:
    """Collects what the clients of a run saw.

    Args:
        until_s: end of the run.
        uncounted_s: length of the warm-up, which is not counted.
    """

    def __init__(self, until_s: float, uncounted_s: float) -> None:
        self._until_s = until_s
        self._uncounted_s = uncounted_s
        self._done = 0
        self._first_s: list[float] = []

    def ended(self, arrival: Arrival, exchange: Exchange) -> None:
        """Count a turn, by its end for throughput and by its start for all other metrics."""
        self._done += self._uncounted_s <= exchange.end_s < self._until_s
        if arrival.at_s < self._uncounted_s:
            return
        self._first_s.append(exchange.first_s - arrival.at_s)

    def numbers(self) -> dict[str, float]:
        """Return the metrics of the run."""
        return {
            "turns_per_s": self._done / (self._until_s - self._uncounted_s),
            "ttft_p95_s": float(np.percentile(self._first_s, 95)),
        }


def _run(
    sites: Sequence[Site],
    rule: str,
    sessions: Iterable[tuple[str, Iterable[Turn]]],
    at_once: int,
    seed: int,
    *,
    until_s: float = _UNTIL_S,
    ramp_s: float = 60.0,
) -> dict[str, float]:
    """Run the sessions, `at_once` at a time, and return the metrics."""
    name, values = parse_policy(RULES[rule])
    fleet = VirtualFleet(
        sites,
        FleetSettings(policy=name),
        seed=seed,
        assessor=fleets.nothing([]),
        policies=build_policies(CostWeights(), {name: values}),
        flow=FlowSettings() if rule == "laar, gate" else None,
        by_load=False,
    )
    turns = Turns(until_s, _UNCOUNTED_SHARE * until_s)
    hold_sessions(
        fleet,
        sessions,
        turns.ended,
        at_once=at_once,
        ramp_s=ramp_s,
        until_s=until_s,
        send=asking_again(fleet, lambda: None),
    )
    return turns.numbers()


def run_cliff(
    data: Path, half: int, engines: int, load: float, rule: str, seed: int
) -> dict[str, float]:
    """Run a rule on half of the sessions, `load` times as many at a time as the caches hold."""
    sites = fleets.of_one("llama-3-8b-a100", engines, kv_tokens=KV_TOKENS)
    at_once = round(load * engines * KV_TOKENS / SESSION_TOKENS)
    return _run(sites, rule, agents(data, half)(generator(seed, "cliff")), at_once, seed)


def _runs(
    scope: Scope, one: Callable[..., dict[str, float]], *axes: Sequence[Any], label: str
) -> Mapping[Any, Runs]:
    """Run each combination of the axes' values on half of the sessions, and return runs by it."""
    half = int(scope.seeds[0] >= JUDGED_FROM)
    cases = {case: (scope.data, half, *case) for case in product(*axes)}
    return grid(one, cases, scope.seeds, label=label)


def run(scope: Scope) -> Report:
    """Run every rule at every load on four and on eight engines."""
    engines, loads = ((4,), (1.0, 2.0)) if scope.quick else ((4, 8), LOADS)
    without = [rule for rule in RULES if rule != "laar, gate"]
    runs = _runs(scope, run_cliff, engines, loads, list(RULES), label="agents-cliff")
    parts = {f"{count} engines, {load}": (count, load) for count, load in product(engines, loads)}

    def compared(
        metric: str, least: float, most: float, others: Sequence[str] = ("laar",)
    ) -> dict[str, Seen]:
        """Compare the gate with the best of the other rules, at loads from `least` to `most`."""
        seen = {}
        for part, case in parts.items():
            if least <= case[1] <= most:
                best = max(others, key=lambda rule: _total(runs[*case, rule]))
                name = f"{part}, {best}" if len(others) > 1 else part
                seen[name] = paired(runs[*case, "laar, gate"], runs[*case, best], metric)
        return seen

    own_best = {}
    for count in engines if 3.0 in loads else ():
        at = {each: runs[count, each, "laar, gate"] for each in loads}
        best = max(loads, key=lambda each: _total(at[each]))
        own_best[f"{count} engines, best at {best}"] = paired(at[3.0], at[best], "turns_per_s")
    evidence = {
        "turns-past": compared("turns_per_s", 1.5, 2.0),
        "turns-below": compared("turns_per_s", 0.0, 1.0),
        "tail": compared("ttft_p95_s", 2.0, 3.0),
        "own-best-far": own_best,
        "beside-best": compared("turns_per_s", 1.5, 2.0, without),
    }
    return Report(evidence=evidence)


def _total(runs: Runs) -> float:
    return sum(run["turns_per_s"] for run in runs)


def run_at_gpu(data: Path, _half: int, at_once: int, rule: str, seed: int) -> dict[str, float]:
    """Run a rule on engines and sessions like those of the race in docs/race/gpu.md, on all."""
    sites = fleets.tokenizing(fleets.of_one("h200-quarter", 4))
    sessions = short_agents(data)(generator(seed, "gpu"))
    return _run(sites, rule, sessions, at_once, seed, until_s=_GPU_UNTIL_S, ramp_s=1.0)


def run_gpu(scope: Scope) -> Report:
    """Compare laar with vllm-router's rule as the race on a GPU did."""
    counts = (22,) if scope.quick else (15, 22, 45, 68)
    runs = _runs(scope, run_at_gpu, counts, ("laar, gate", "vllm-router"), label="agents-gpu")
    evidence: dict[str, dict[str, Seen]] = {"fit": {}, "past": {}}
    for count in counts:
        seen = paired(runs[count, "laar, gate"], runs[count, "vllm-router"], "turns_per_s")
        evidence["past" if count > _GPU_FIT else "fit"][f"{count} sessions"] = seen
    return Report(evidence=evidence)


EXPERIMENTS = declared(__name__, {"agents-cliff": run, "agents-gpu": run_gpu})
