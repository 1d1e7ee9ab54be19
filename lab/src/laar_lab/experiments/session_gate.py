"""Does admitting sessions by the price of room harm traffic whose contexts fit the caches?

Every workload of `no-regret` with the default policy: as requests are placed without flow control,
with flow control as it is by default, and with the gate for sessions alone, which is flow control
without its caps on load. The three meet the same load and network for each seed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from laar.flow.saturation import Saturation
from laar.flow.settings import FlowSettings
from laar_lab.claims import Evidence, Runs, level, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report, Table, Value
from laar_lab.statistics import log_ratios
from laar_lab.suite.case import Case, Numbers, run_case
from laar_lab.suite.runs import OURS, chosen
from laar_lab.suite.table import cases
from laar_lab.sweep import grid

WAYS = {
    "none": None,
    "gate": FlowSettings(
        saturation=Saturation(max_prefill_s=3600.0, max_requests=100_000), long_tokens=1 << 30
    ),
    "flow": FlowSettings(),
}
"""Flow control, by its name in the table."""

_SHOWN = {
    "ttft_mean_s": "mean TTFT",
    "ttft_p50_s": "p50",
    "ttft_p95_s": "p95",
    "e2e_mean_s": "mean answer",
    "e2e_p95_s": "p95",
    "requests": "requests",
}
_QUICK_CASES = ("agents-8k", "parallel-chats")


def _run(case: Case, way: str, share: float, seed: int) -> Numbers:
    return run_case(case, OURS, seed, share=share, flow=WAYS[way])


def run(scope: Scope) -> Report:
    """Run every workload every way; report how much longer it takes than without flow control."""
    names = scope.workloads or (_QUICK_CASES if scope.quick else ())
    picked = chosen(cases(scope.data), names)
    share = 0.2 if scope.quick else 1.0
    runs = {(case.name, way): (case, way, share) for case in picked for way in WAYS}
    found = grid(_run, runs, scope.seeds, label="session-gate")
    rows: list[tuple[Value, ...]] = [
        (case.name, way, *_more(found[case.name, way], found[case.name, "none"]))
        for case in picked
        for way in ("gate", "flow")
    ]
    title = "per cent more than without flow control (less is better, but for requests)"
    table = Table(
        title=title, columns=("workload", "way", *_SHOWN.values(), "failed"), rows=rows, digits=1
    )
    return Report(tables=[table], evidence=_evidence(found, [case.name for case in picked]))


def _more(ours: Runs, theirs: Runs) -> list[Value]:
    shares: list[Value] = []
    for name in _SHOWN:
        ratios = log_ratios([run[name] for run in ours], [run[name] for run in theirs])
        shares.append(100.0 * float(np.expm1(np.mean(ratios))))
    return [*shares, 100.0 * float(np.mean([run["failed"] for run in ours]))]


def _evidence(found: Mapping[tuple[str, str], Runs], names: list[str]) -> Evidence:
    return {
        "gate-ttft-mean": {
            name: paired(found[name, "gate"], found[name, "none"], "ttft_mean_s") for name in names
        },
        "gate-e2e-mean": {
            name: paired(found[name, "gate"], found[name, "none"], "e2e_mean_s") for name in names
        },
        "gate-fails": {name: level(found[name, "gate"], "failed") for name in names},
    }


EXPERIMENTS = declared(__name__, {"session-gate": run})
