"""Who finds the reward hack: a climb on TTFT without bounds does, and what keeps others from it.

Four climbs on the decode-bound fleet, from the same weights: the published one and the product's on
TTFT, with the load weight free to go to zero; the product's on the whole answer with the same
freedom; and the product's on TTFT within the published box. What each ends with is then measured
on another trace. A fleet can be piled up by either weight: round trips that count for much do it
as well as queues that count for nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from laar.lab.experiment import Experiment, Scope
from laar.lab.experiments.gorgo_published import PublishedClimb
from laar.lab.experiments.gorgo_reward_hack import RATES
from laar.lab.experiments.gorgo_runs import (
    PAPER_BOX,
    PAPER_INITIAL,
    Run,
    policies_of,
    results_table,
    run_all,
    run_policies,
    tuned,
)
from laar.lab.intervals import estimate
from laar.lab.report import Check, Report, Table
from laar.lab.sweep import sweep
from laar.lab.workloads.sessions import GORGO_CHATS

__all__ = ["EXPERIMENTS", "published_climb"]

_FREE = {"rtt_weight": (1e-3, 100.0), "queue_weight": (1e-6, 0.5)}
_GRID = (0.02, 0.05, 0.1, 0.2, 0.5)
_HACKED_BELOW = 0.01
_HELD_BELOW = 1.3
_PUBLISHED, _OPEN = "published, TTFT, free", "ours, TTFT, free"
_WHOLE, _BOXED = "ours, whole answer, free", "ours, TTFT, box"


def published_climb(run: Run, bounds: dict[str, tuple[float, float]]) -> dict[str, float]:
    """The published climb over one run's trace; its best weights."""
    climb = PublishedClimb(bounds, PAPER_INITIAL, seed=run.seed)

    def prepare(fleet: Any) -> None:
        fleet.director.tuner = climb

    run_policies(run, policies_of(run), prepare)
    return climb.best


def run(scope: Scope) -> Report:
    """At the rate in the middle of those of `gorgo-reward-hack`."""
    base = Run(
        policy="gorgo",
        seed=0,
        time_scale=1.0,
        minutes=10.0 if scope.quick else 60.0,
        profile="gorgo-hack",
        shape=replace(GORGO_CHATS, requests_per_s=RATES[1]),
    )
    traces = [replace(base, seed=seed) for seed in scope.seeds]
    windows = 6 if scope.quick else 60
    label = "gorgo-discovery"
    ends = {
        _PUBLISHED: sweep(published_climb, [(run, _FREE) for run in traces], label=label),
        _OPEN: sweep(
            tuned, [(run, _FREE, PAPER_INITIAL, windows, "ttft-p95") for run in traces], label=label
        ),
        _WHOLE: sweep(
            tuned, [(run, _FREE, PAPER_INITIAL, windows, "e2e-p95") for run in traces], label=label
        ),
        _BOXED: sweep(
            tuned,
            [(run, PAPER_BOX, PAPER_INITIAL, windows, "ttft-p95") for run in traces],
            label=label,
        ),
    }
    held_out = [
        replace(base, seed=seed + 1, minutes=8.0 if scope.quick else 15.0) for seed in scope.seeds
    ]
    runs = {
        name: [
            replace(run, gorgo=tuple(weights.items()))
            for run, weights in zip(held_out, found, strict=True)
        ]
        for name, found in ends.items()
    }
    for weight in _GRID:
        point = (("rtt_weight", 0.276), ("queue_weight", weight))
        runs[f"grid, {weight:g}"] = [replace(run, gorgo=point) for run in held_out]
    results = run_all(runs, label)
    best = min((estimate([r["e2e_p95_s"] for r in results[f"grid, {w:g}"]]).mean, w) for w in _GRID)

    def low(name: str) -> int:
        return sum(weights["queue_weight"] < _HACKED_BELOW for weights in ends[name])

    def slow(name: str) -> float:
        return estimate([r["e2e_p95_s"] for r in results[name]]).mean / best[0]

    checks = [
        Check(
            claim=f"{name}: ends below a load weight of {_HACKED_BELOW} in most seeds",
            held=2 * low(name) > len(traces),
            seen=f"in {low(name)} of {len(traces)}; p95 end to end {slow(name):.2f} of the best",
        )
        for name in (_PUBLISHED, _OPEN)
    ]
    checks += [
        Check(
            claim=f"{name}: p95 end to end within {_HELD_BELOW} of the best of a grid, "
            "load weight kept",
            held=slow(name) <= _HELD_BELOW and 2 * low(name) <= len(traces),
            seen=f"{slow(name):.2f} of the grid's best ({best[1]:g}); "
            f"below {_HACKED_BELOW} in {low(name)}",
        )
        for name in (_WHOLE, _BOXED)
    ]
    weights = Table(
        title="Weights each climb ended with",
        columns=("climb", "seed", "rtt", "queue"),
        rows=[
            (name, str(run.seed), *found.values())
            for name, all_found in ends.items()
            for run, found in zip(traces, all_found, strict=True)
        ],
        digits=5,
    )
    return Report(tables=[weights, results_table(results, "on another trace")], checks=checks)


EXPERIMENTS = (
    Experiment(
        name="gorgo-discovery",
        claim="Climbing on TTFT without bounds finds the hack; a floor or E2E does not",
        source="GORGO section 6",
        run=run,
        seeds=5,
    ),
)
