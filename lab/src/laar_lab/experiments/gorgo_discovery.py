"""Climbs that find the reward hack: one on TTFT without bounds does. What prevents the others?

Four climbs on the decode-bound fleet, from the same weights: the published one and the product's on
TTFT, with the load weight free to go to zero; the product's on the whole answer with the same
freedom; and the product's on TTFT within the published box. The weights of each are then measured
on another trace. A fleet can be piled up by either weight: round trips that count for much do it
as well as queues that count for nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_published import PublishedClimb
from laar_lab.experiments.gorgo_reward_hack import RATES
from laar_lab.experiments.gorgo_runs import (
    PAPER_BOX,
    PAPER_INITIAL,
    Run,
    policies_of,
    results_table,
    run_all,
    run_policies,
    tuned,
)
from laar_lab.report import Report, Table
from laar_lab.statistics import estimate
from laar_lab.sweep import sweep
from laar_lab.workloads.sessions import GORGO_CHATS

_FREE = {"rtt_weight": (1e-3, 100.0), "queue_weight": (1e-6, 0.5)}
_GRID = (0.02, 0.05, 0.1, 0.2, 0.5)
HELD_OUT_SEEDS = 5000
"""Added to a seed for the trace that is measured: no other climb was on it."""

_PUBLISHED, _OPEN = "published, TTFT, free", "ours, TTFT, free"
_WHOLE, _BOXED = "ours, whole answer, free", "ours, TTFT, box"
_CLIMBS = {
    "published-free": _PUBLISHED,
    "ours-free": _OPEN,
    "whole-answer": _WHOLE,
    "floor": _BOXED,
}


def published_climb(run: Run, bounds: dict[str, tuple[float, float]]) -> dict[str, float]:
    """The published climb over one run's trace; its best weights."""
    climb = PublishedClimb(bounds, PAPER_INITIAL, seed=run.seed)

    def prepare(fleet: Any) -> None:
        fleet.director.use_tuner(climb)

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
        replace(base, seed=seed + HELD_OUT_SEEDS, minutes=8.0 if scope.quick else 15.0)
        for seed in scope.seeds
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

    grid = results[f"grid, {best[1]:g}"]
    evidence = {name: {"": paired(results[_CLIMBS[name]], grid, "e2e_p95_s")} for name in _CLIMBS}
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
    return Report(tables=[weights, results_table(results, "on another trace")], evidence=evidence)


EXPERIMENTS = declared(__name__, {"gorgo-discovery": run})
