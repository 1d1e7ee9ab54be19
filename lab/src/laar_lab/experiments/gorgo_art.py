"""GORGO's own regime: prompts of 18,000 tokens, nine tenths of them seen before, at three loads.

ART-Chat as its authors describe it, on their three endpoints; time x 2 and x 3 are the half and the
third of the load that their held-out days have. At each load the published weights, frozen, meet
weights that were climbed to at that very load on a trace of their own, and the baselines.
"""

from __future__ import annotations

from dataclasses import replace

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_heldout import TRAINING_SEEDS
from laar_lab.experiments.gorgo_runs import (
    PAPER_BASELINES,
    PAPER_BOX,
    PAPER_INITIAL,
    PAPER_INTERVAL_S,
    Run,
    Runs,
    results_table,
    run_all,
    tuned,
)
from laar_lab.report import Report
from laar_lab.sweep import sweep
from laar_lab.workloads.sessions import GORGO_CHATS

_ART = replace(
    GORGO_CHATS,
    requests_per_s=2.3,
    first_log=(8.8, 0.8),
    max_prompt_tokens=64_000,
    single_share=0.1,
    mean_turns=14.0,
)
"""The shape of the suite's `art-x1`, for half as many endpoints."""

_LOADS = (1.0, 2.0, 3.0)
_AFFINITY = "simple-session-affinity"
_PUBLISHED, _TUNED = "gorgo, published", "gorgo, tuned"


def run(scope: Scope) -> Report:
    """Every contestant at every load."""
    base = Run(
        policy="gorgo",
        seed=0,
        time_scale=1.0,
        minutes=2.0 if scope.quick else 6.0,
        shape=_ART,
        interval_s=PAPER_INTERVAL_S,
    )
    windows = 4 if scope.quick else 20
    climbs = [
        (replace(base, seed=seed + TRAINING_SEEDS, time_scale=load), PAPER_BOX, PAPER_INITIAL)
        for load in _LOADS
        for seed in scope.seeds
    ]
    weights = iter(sweep(tuned, [(*climb, windows) for climb in climbs], label="gorgo-art: tuning"))
    runs: dict[str, list[Run]] = {}
    for load in _LOADS:
        at = [replace(base, seed=seed, time_scale=load) for seed in scope.seeds]
        runs[_row(_TUNED, load)] = [
            replace(one, gorgo=tuple(found.items()))
            for one, found in zip(at, weights, strict=False)  # takes no more than it needs
        ]
        runs[_row(_PUBLISHED, load)] = at
        runs[_row("laar", load)] = [replace(one, policy="laar", interval_s=None) for one in at]
        for policy in PAPER_BASELINES:
            runs[_row(policy, load)] = [replace(one, policy=policy) for one in at]
    results = run_all(runs, "gorgo-art")

    def against(ours: str, theirs: str) -> dict[str, Seen]:
        return {
            f"x {load:g}": paired(
                results[_row(ours, load)], results[_row(theirs, load)], "ttft_p95_s"
            )
            for load in _LOADS
        }

    return Report(
        tables=[results_table(_of_load(results, load), f"time x {load:g}") for load in _LOADS],
        evidence={
            "affinity": against(_PUBLISHED, _AFFINITY),
            "tuned": against(_TUNED, _PUBLISHED),
            "laar": {
                f"{policy}, {part}": seen
                for policy in (*PAPER_BASELINES, _PUBLISHED, _TUNED)
                for part, seen in against("laar", policy).items()
            },
        },
    )


def _row(policy: str, load: float) -> str:
    return f"{policy}, x {load:g}"


def _of_load(results: Runs, load: float) -> Runs:
    end = f", x {load:g}"
    return {name: of for name, of in results.items() if name.endswith(end)}


EXPERIMENTS = declared(__name__, {"gorgo-art": run})
