"""GORGO's regime: prompts of 18,000 tokens, nine tenths of them seen before, at three loads.

This is ART-Chat as described by its authors, on their three endpoints. Stretching times by 2 and 3
gives half and a third of the load, as on their held-out days.
"""

from __future__ import annotations

from dataclasses import replace

from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_runs import PAPER_INTERVAL_S, Run, by_policy, run_all
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
_OURS, _THEIRS = "gorgo", "simple-session-affinity"


def run(scope: Scope) -> Report:
    """Run both rules at every load."""
    minutes = 2.0 if scope.quick else 6.0
    seen = {}
    for load in _LOADS:
        base = Run(time_scale=load, minutes=minutes, shape=_ART, interval_s=PAPER_INTERVAL_S)
        runs = run_all(by_policy(base, (_OURS, _THEIRS), scope.seeds), f"gorgo-art x {load:g}")
        seen[f"x {load:g}"] = paired(runs[_OURS], runs[_THEIRS], "ttft_p95_s")
    return Report(evidence={"affinity": seen})


EXPERIMENTS = declared(__name__, {"gorgo-art": run})
