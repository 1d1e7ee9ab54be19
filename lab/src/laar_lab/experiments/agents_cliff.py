"""More agents than fit in the caches: throughput, times and fairness by rule, as load grows.

Real sessions of coding agents run as a closed loop on engines with small caches. The number of
sessions that fit is the fleet's KV divided by `SESSION_TOKENS`; the loads are multiples of it. All
rules get the same sessions, know the engines' cache sizes and use laar's prefix index. The rules
that hold sessions back choose endpoints as laar does.

Rules were chosen on one half of the sessions, by position in the file, and are judged on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from laar.core.cost import CostWeights
from laar.core.request import Request
from laar.envoy.options import BootstrapOptions
from laar.flow.settings import FlowSettings
from laar.policies import build_policies
from laar_lab.claims import Runs, Seen, level, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.agents_runs import KV_TOKENS, Turns
from laar_lab.peers import Gate
from laar_lab.policy_text import parse_policy
from laar_lab.report import Report
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    Send,
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

SESSION_TOKENS = 54_000
"""Mean context of a session during the run (decision 14)."""

LOADS = (0.75, 1.0, 1.5, 2.0, 3.0)
"""Numbers of concurrent sessions, as multiples of the number that fits in the caches."""

JUDGED_FROM = 70_000
"""From this seed on, runs use the half of the sessions reserved for the verdict."""

_PATIENCE_S = 600.0
_UNTIL_S = 480.0
_GPU_UNTIL_S = 120.0
_GPU_FIT = 15  # sessions that fit in the caches
_UNCOUNTED_SHARE = 0.2
_SHARE_DELAY_S = 0.015  # as measured with a store (`python -m bench sharing`)
_CROWD = 0.9  # share of the fleet's KV that the crude gate may fill
_CROWD_IDLE_S = 20.0  # the best of the values tried: 1, 5, 20 and 65 s

_TWO = ("laar", "laar, gate")
_PATIENT = "laar, patient"
RULES = {
    "laar": ("laar", ""),
    "laar, gate": ("laar", "sessions"),
    _PATIENT: ("laar", "patient"),
    "least-loaded": ("least-loaded", ""),
    "vllm-router": ("vllm-router", ""),
    "smg": ("smg", ""),
    "smg-veto": ("smg-veto", ""),
    "sticky": ("sticky-least-loaded", ""),
    "dynamo": ("dynamo", ""),
    "dynamo, shared once": ("dynamo:shared_weight=0", ""),
    "crude gate": ("laar", "gate"),
    "programs": ("laar", "programs"),
}
"""Policy, and the gate or flow control in front of it, by name in the table. The crude gate admits
sessions up to a fixed share of the caches; the gate for programs is ThunderAgent's."""


def _patient(send: Send) -> Send:
    """Let clients say that they wait as long as OpenAI's and Anthropic's libraries do."""

    def sent(request: Request, arrival: Arrival, ended: Callable[[Exchange], None]) -> None:
        request.patience_s = _PATIENCE_S
        request.longest_hold_s = BootstrapOptions().longest_hold_s
        send(request, arrival, ended)

    return sent


class _Run:
    """A run, and what its clients saw."""

    def __init__(
        self,
        sites: Sequence[Site],
        rule: str,
        seed: int,
        pickers: int = 1,
        until_s: float = _UNTIL_S,
    ) -> None:
        policy, way = RULES[rule]
        name, values = parse_policy(policy)
        self.fleet = VirtualFleet(
            sites,
            FleetSettings(
                policy=name,
                pickers=pickers,
                share_delay_s=_SHARE_DELAY_S if pickers > 1 else None,
            ),
            seed=seed,
            assessor=fleets.nothing([]),
            policies=build_policies(CostWeights(), {name: values}),
            flow=FlowSettings() if way in {"sessions", "patient"} else None,
            by_load=False,
        )
        self.until_s = until_s
        self.turns = Turns(until_s, _UNCOUNTED_SHARE * until_s)
        kv_tokens = float(len(sites) * KV_TOKENS)
        gates: dict[str, Callable[[], Send]] = {
            "gate": lambda: Gate(self.fleet, _CROWD * kv_tokens, idle_s=_CROWD_IDLE_S).send,
            "programs": lambda: Gate(self.fleet, kv_tokens, fades=True).send,
        }
        again = asking_again(self.fleet, lambda: None)
        gates["patient"] = lambda: _patient(again)
        self.send = gates[way]() if way in gates else again


def run_cliff(
    data: Path,
    half: int,
    engines: int,
    load: float,
    rule: str,
    seed: int,
    *,
    pickers: int = 1,
    rename: Callable[[Request], None] | None = None,
) -> dict[str, float]:
    """Run a rule on half of the sessions, `load` times as many at a time as the caches hold.

    `rename` changes what each request says about its session.
    """
    sites = fleets.of_one("llama-3-8b-a100", engines, kv_tokens=KV_TOKENS)
    return _run(data, half, sites, load, rule, seed, pickers=pickers, rename=rename)


def _run(
    data: Path,
    half: int,
    sites: Sequence[Site],
    load: float,
    rule: str,
    seed: int,
    *,
    pickers: int = 1,
    rename: Callable[[Request], None] | None = None,
) -> dict[str, float]:
    sessions = agents(data, half)(generator(seed, "cliff"))
    at_once = round(load * len(sites) * KV_TOKENS / SESSION_TOKENS)
    run = _Run(sites, rule, seed, pickers)
    if rename is not None:
        run.send = _renamed(run.send, rename)
    return _held(run, sessions, at_once, ramp_s=60.0)


def _renamed(send: Send, rename: Callable[[Request], None]) -> Send:
    def sent(request: Request, arrival: Arrival, ended: Callable[[Exchange], None]) -> None:
        rename(request)
        send(request, arrival, ended)

    return sent


def _held(
    run: _Run, sessions: Iterable[tuple[str, Iterable[Turn]]], at_once: int, *, ramp_s: float
) -> dict[str, float]:
    """Run the sessions, `at_once` at a time, and return the metrics."""
    hold_sessions(
        run.fleet,
        sessions,
        run.turns.ended,
        at_once=at_once,
        ramp_s=ramp_s,
        until_s=run.until_s,
        send=run.send,
    )
    records = [director.health.records for director in run.fleet.directors]
    known = [endpoint for each in records for endpoint in each.endpoints.values()]
    excluded = sum(endpoint.breaker.openings for endpoint in known)
    return run.turns.numbers() | {"excluded": float(excluded)}


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
    only_place = [rule for rule, (_, way) in RULES.items() if not way]
    rules = (*only_place, "laar, gate")
    runs = _runs(scope, run_cliff, engines, loads, rules, label="agents-cliff")
    parts = _parts(engines, loads, "engines")
    evidence = {
        "turns-past": _compared(runs, parts, "turns_per_s", 1.5, 2.0),
        "turns-below": _compared(runs, parts, "turns_per_s", 0.0, 1.0),
        "turns-far": _compared(runs, parts, "turns_per_s", 3.0, 3.0),
        "turn-time": _compared(runs, parts, "turn_s", 2.0, 3.0),
        "tail": _compared(runs, parts, "ttft_p95_s", 2.0, 3.0),
        "own-best": _against_own_best(runs, engines, loads, 2.0, "engines"),
        "own-best-far": _against_own_best(runs, engines, loads, 3.0, "engines"),
        "beside-best": _compared(runs, parts, "turns_per_s", 1.5, 2.0, only_place),
        "longest-hold": _levels(runs, parts, "held_s"),
        "excluded": _levels(runs, parts, "excluded"),
    }
    return Report(evidence=evidence)


_Cases = Mapping[tuple[int, float, str], Runs]
"""Runs by number of engines or pickers, load and rule."""


def _parts(
    counts: Sequence[int], loads: Sequence[float], what: str
) -> dict[str, tuple[int, float]]:
    """Return the parts of a claim by name: every count of `what` at every load."""
    return {f"{count} {what}, {load}": (count, load) for count, load in product(counts, loads)}


def _compared(
    runs: _Cases,
    parts: Mapping[str, tuple[int, float]],
    metric: str,
    least: float,
    most: float,
    others: Sequence[str] = ("laar",),
    own: str = "laar, gate",
) -> dict[str, Seen]:
    """Compare a rule of laar with the best of the other rules, at loads from `least` to `most`."""
    seen = {}
    for part, case in parts.items():
        if least <= case[1] <= most:
            best = max(others, key=lambda rule: total(runs[*case, rule], "turns_per_s"))
            name = f"{part}, {best}" if len(others) > 1 else part
            seen[name] = paired(runs[*case, own], runs[*case, best], metric)
    return seen


def _against_own_best(
    runs: _Cases, counts: Sequence[int], loads: Sequence[float], load: float, what: str
) -> dict[str, Seen]:
    """Compare the gate's throughput at a load with its best at any load."""
    seen = {}
    for count in counts if load in loads else ():
        at = {each: runs[count, each, "laar, gate"] for each in loads}
        best = max(loads, key=lambda each: total(at[each], "turns_per_s"))
        seen[f"{count} {what}, best at {best}"] = paired(at[load], at[best], "turns_per_s")
    return seen


def _levels(
    runs: _Cases, parts: Mapping[str, tuple[int, float]], metric: str, own: str = "laar, gate"
) -> dict[str, Seen]:
    """Return a metric of the runs with a rule of laar, by part."""
    return {part: level(runs[*case, own], metric) for part, case in parts.items()}


def total(runs: Runs, metric: str) -> float:
    """Return the sum of a metric over the seeds."""
    return sum(run[metric] for run in runs)


def run_several(
    data: Path, half: int, pickers: int, load: float, rule: str, seed: int
) -> dict[str, float]:
    """Run a rule on four engines behind several pickers; each turn goes to a random one."""
    return run_cliff(data, half, 4, load, rule, seed, pickers=pickers)


def run_pickers(scope: Scope) -> Report:
    """Run laar with and without the gate behind one, two and four pickers that share a store."""
    pickers, loads = ((2,), (2.0,)) if scope.quick else ((1, 2, 4), (0.75, 1.5, 2.0))
    runs = _runs(scope, run_several, pickers, loads, _TWO, label="agents-pickers")
    parts = _parts(pickers, loads, "pickers")
    several = {part: case for part, case in parts.items() if case[0] > 1}
    evidence = {
        "past": _compared(runs, several, "turns_per_s", 1.5, 2.0),
        "below": _compared(runs, several, "turns_per_s", 0.0, 1.0),
        "longest-hold": _levels(runs, parts, "held_s"),
    }
    return Report(evidence=evidence)


def run_at_parallel(
    data: Path, half: int, slow: int, load: float, rule: str, seed: int
) -> dict[str, float]:
    """Run a rule on eight engines that prefill in parallel, `slow` of them 2.5 times slower."""
    sites = fleets.parallel(8 - slow, slow, kv_tokens=KV_TOKENS)
    return _run(data, half, sites, load, rule, seed)


def run_parallel(scope: Scope) -> Report:
    """Compare the gate with rules without a gate, on engines that prefill in parallel."""
    slow, loads = ((4,), (1.0, 3.0)) if scope.quick else ((0, 4), LOADS)
    runs = _runs(scope, run_at_parallel, slow, loads, _TWO, label="agents-parallel")
    parts = _parts(slow, loads, "slow")
    evidence = {
        "turns-past": _compared(runs, parts, "turns_per_s", 2.0, 3.0),
        "turns-below": _compared(runs, parts, "turns_per_s", 0.0, 1.5),
        "ttft-below": _compared(runs, parts, "ttft_s", 0.0, 1.5),
        "ttft-past": _compared(runs, parts, "ttft_s", 2.0, 3.0),
        "own-best-far": _against_own_best(runs, slow, loads, 3.0, "slow"),
        "longest": _levels(runs, parts, "ttft_max_s"),
    }
    return Report(evidence=evidence)


def _beside(
    runs: Mapping[tuple[float, str], Runs], parts: Mapping[str, float], metric: str, rule: str
) -> dict[str, Seen]:
    """Compare the gate with a rule, by part."""
    return {
        part: paired(runs[case, "laar, gate"], runs[case, rule], metric)
        for part, case in parts.items()
    }


def run_at_fast(data: Path, half: int, load: float, rule: str, seed: int) -> dict[str, float]:
    """Run a rule on four engines of eight H100s each that tokenize as vLLM does."""
    sites = fleets.tokenizing(fleets.of_one("llama-3-8b-h100", 4, kv_tokens=KV_TOKENS))
    return _run(data, half, sites, load, rule, seed)


def run_fast(scope: Scope) -> Report:
    """Compare the gate with rules without a gate, on engines that can prefill all contexts."""
    loads = (2.0,) if scope.quick else (1.0, 2.0, 3.0)
    runs = _runs(scope, run_at_fast, loads, (*_TWO, "vllm-router"), label="agents-fast")
    parts = {f"at {load}": load for load in loads}
    evidence = {
        "turns": _beside(runs, parts, "turns_per_s", "laar"),
        "turn-time": _beside(runs, parts, "turn_s", "laar"),
        "beside-peer": _beside(runs, parts, "turn_s", "vllm-router"),
    }
    return Report(evidence=evidence)


def run_fair(scope: Scope) -> Report:
    """Compare the sessions with the longest turns, under the gate and under rules without one."""
    engines, loads = ((4,), (2.0,)) if scope.quick else ((4, 8), (1.5, 2.0, 3.0))
    others = ("laar", "vllm-router", "sticky")
    runs = _runs(scope, run_cliff, engines, loads, ("laar, gate", *others), label="agents-fair")
    parts = _parts(engines, loads, "engines")
    longest = {
        f"{part}, {rule}": paired(runs[*case, "laar, gate"], runs[*case, rule], "session_p95_s")
        for (part, case), rule in product(parts.items(), others)
    }
    even = {
        f"{part}, {rule}": level(runs[*case, rule], "fairness")
        for (part, case), rule in product(parts.items(), others)
    }
    return Report(evidence={"longest": longest, "even": even})


def run_at_gpu(data: Path, _half: int, at_once: float, rule: str, seed: int) -> dict[str, float]:
    """Run a rule on engines and sessions like those of the race in docs/race/gpu.md, on all."""
    sites = fleets.tokenizing(fleets.of_one("h200-quarter", 4))
    run = _Run(sites, rule, seed, until_s=_GPU_UNTIL_S)
    sessions = short_agents(data)(generator(seed, "gpu"))
    return _held(run, sessions, round(at_once), ramp_s=1.0)


def run_gpu(scope: Scope) -> Report:
    """Compare laar with vllm-router's rule as the race on a GPU did."""
    sessions: tuple[float, ...] = (22,) if scope.quick else (15, 22, 45, 68)
    runs = _runs(scope, run_at_gpu, sessions, (*_TWO, "vllm-router"), label="agents-gpu")
    parts = {f"{count} sessions": count for count in sessions}
    past = {part: count for part, count in parts.items() if count > _GPU_FIT}
    fit = {part: count for part, count in parts.items() if count <= _GPU_FIT}
    evidence = {
        "fit": _beside(runs, fit, "turns_per_s", "vllm-router"),
        "past": _beside(runs, past, "turns_per_s", "vllm-router"),
        "gate": _beside(runs, parts, "turns_per_s", "laar"),
    }
    return Report(evidence=evidence)


def run_patient(scope: Scope) -> Report:
    """Compare rules for clients that say that they wait for ten minutes."""
    loads = (2.0,) if scope.quick else (2.0, 3.0)
    others = ("laar, gate", "vllm-router", "smg", "crude gate", "programs")
    runs = _runs(scope, run_cliff, (4,), loads, (_PATIENT, *others), label="agents-patient")
    parts = _parts((4,), loads, "engines")
    evidence = {
        "twice": _compared(runs, parts, "turns_per_s", 2.0, 2.0, others, _PATIENT),
        "thrice": _compared(runs, parts, "turns_per_s", 3.0, 3.0, others, _PATIENT),
        "longest-hold": _levels(runs, parts, "held_s", _PATIENT),
    }
    return Report(evidence=evidence)


EXPERIMENTS = declared(
    __name__,
    {
        "agents-cliff": run,
        "agents-pickers": run_pickers,
        "agents-parallel": run_parallel,
        "agents-fast": run_fast,
        "agents-fair": run_fair,
        "agents-gpu": run_gpu,
        "agents-patient": run_patient,
    },
)
