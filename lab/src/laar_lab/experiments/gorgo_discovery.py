"""Which climbs find the reward hack? A climb on TTFT without bounds does. What stops the others?

Four climbs start from the same weights on the decode-bound fleet: the published climb and the
product's, both on TTFT with a load weight that may go to zero; the product's on E2E with the same
freedom; and the product's on TTFT within the published bounds. The weights that each climb finds
are then measured on a different trace. One endpoint is overloaded if the round-trip weight is too
large, and also if the queue weight is zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_published import PublishedClimb
from laar_lab.experiments.gorgo_runs import (
    PAPER_BOX,
    PAPER_INITIAL,
    Bounds,
    Run,
    gorgo_scorer,
    on_seeds,
    policies_of,
    run_all,
    run_policies,
    tuned,
    with_weights,
)
from laar_lab.report import Report
from laar_lab.statistics import mean
from laar_lab.sweep import sweep
from laar_lab.tuning.climb import Climbing
from laar_lab.workloads.sessions import GORGO_CHATS

_LABEL = "gorgo-discovery"
_RATE_PER_S = 3.25  # a sixth of the requests are too long and never sent
_FREE = {"rtt_weight": (1e-3, 100.0), "queue_weight": (1e-6, 0.5)}
_GRID = (0.02, 0.05, 0.1, 0.2, 0.5)
HELD_OUT_SEEDS = 5000
"""Offset from a seed to the seed of the measured trace, on which no climb ran."""

_CLIMBS = {
    "published-free": "published, TTFT, free",
    "ours-free": "ours, TTFT, free",
    "whole-answer": "ours, whole answer, free",
    "floor": "ours, TTFT, box",
}


def published_climb(run: Run, bounds: Bounds) -> dict[str, float]:
    """Run the published climb on a run's trace; return its best weights."""
    climb = PublishedClimb(bounds, PAPER_INITIAL, seed=run.seed)

    def prepare(fleet: Any) -> None:
        Climbing(fleet, climb, gorgo_scorer)

    run_policies(run, policies_of(run), prepare)
    return climb.best


def run(scope: Scope) -> Report:
    """Run all climbs."""
    base = Run(
        minutes=10.0 if scope.quick else 60.0,
        profile="gorgo-hack",
        shape=replace(GORGO_CHATS, requests_per_s=_RATE_PER_S),
    )
    traces = on_seeds(base, scope.seeds)
    windows = 6 if scope.quick else 60

    def climb(bounds: Bounds, objective: str) -> list[dict[str, float]]:
        cases = [(run, bounds, PAPER_INITIAL, windows, objective) for run in traces]
        return sweep(tuned, cases, label=_LABEL)

    ends = {
        "published-free": sweep(published_climb, [(run, _FREE) for run in traces], label=_LABEL),
        "ours-free": climb(_FREE, "ttft-p95"),
        "whole-answer": climb(_FREE, "e2e-p95"),
        "floor": climb(PAPER_BOX, "ttft-p95"),
    }
    minutes = 8.0 if scope.quick else 15.0
    held_out = on_seeds(base, [seed + HELD_OUT_SEEDS for seed in scope.seeds], minutes=minutes)
    runs = {_CLIMBS[name]: with_weights(held_out, found) for name, found in ends.items()}
    for weight in _GRID:
        point = {"rtt_weight": 0.276, "queue_weight": weight}
        runs[f"grid, {weight:g}"] = with_weights(held_out, [point] * len(held_out))
    results = run_all(runs, _LABEL)
    grid = min(
        (results[f"grid, {weight:g}"] for weight in _GRID),
        key=lambda point: mean(point, "e2e_p95_s").mean,
    )
    return Report(
        evidence={
            name: {"": paired(results[called], grid, "e2e_p95_s")}
            for name, called in _CLIMBS.items()
        },
    )


EXPERIMENTS = declared(__name__, {"gorgo-discovery": run})
