"""GORGO's regime: prompts of 18,000 tokens, nine tenths of them seen before, at three loads.

This is ART-Chat as described by its authors, on their three endpoints. Stretching times by 2 and 3
gives half and a third of the load, as on their held-out days. At each load the published weights
are compared with the baselines, and laar with both.
"""

from __future__ import annotations

from dataclasses import replace

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_runs import (
    PAPER_BASELINES,
    PAPER_INTERVAL_S,
    Run,
    by_policy,
    on_seeds,
    run_all,
)
from laar_lab.report import Report
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
_PUBLISHED = "gorgo, published"


def run(scope: Scope) -> Report:
    """Run every contestant at every load."""
    minutes = 2.0 if scope.quick else 6.0
    results = {}
    for load in _LOADS:
        ours = Run(policy="laar", time_scale=load, minutes=minutes, shape=_ART)
        gorgo = replace(ours, policy="gorgo", interval_s=PAPER_INTERVAL_S)
        runs = {
            _PUBLISHED: on_seeds(gorgo, scope.seeds),
            "laar": on_seeds(ours, scope.seeds),
            **by_policy(gorgo, PAPER_BASELINES, scope.seeds),
        }
        results[f"x {load:g}"] = run_all(runs, f"gorgo-art x {load:g}")

    def against(ours: str, theirs: str) -> dict[str, Seen]:
        return {x: paired(of[ours], of[theirs], "ttft_p95_s") for x, of in results.items()}

    return Report(
        evidence={
            "affinity": against(_PUBLISHED, "simple-session-affinity"),
            "laar": {
                f"{policy}, {x}": seen
                for policy in (*PAPER_BASELINES, _PUBLISHED)
                for x, seen in against("laar", policy).items()
            },
        },
    )


EXPERIMENTS = declared(__name__, {"gorgo-art": run})
