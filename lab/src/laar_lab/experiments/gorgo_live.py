"""Why weights are frozen: a climb on live traffic worsens the tail for its users.

On each held-out trace, weights tuned elsewhere and frozen are compared with climbs that continue
while serving. The claim is about the published climb within its bounds. The published climb and the
product's, both without bounds, show what bounds and guard rails are worth. The published p99 TTFT
is 7.2 s live and 2.1 s frozen.
"""

from __future__ import annotations

from laar.tuning.settings import TunerSettings
from laar.tuning.tuner import Tuner
from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_published import PublishedClimb
from laar_lab.experiments.gorgo_runs import (
    PAPER_BOX,
    PAPER_INITIAL,
    Run,
    change,
    on_seeds,
    policies_of,
    results_table,
    run_all,
    run_policies,
    tuned_elsewhere,
)
from laar_lab.report import Report
from laar_lab.sim.fleet import VirtualFleet
from laar_lab.sweep import sweep

_WIDE = {"rtt_weight": (1e-3, 100.0), "queue_weight": (1e-4, 10.0)}
"""Bounds wide enough not to hint at where to search."""


_AS_RUN = "live, published"
_LIVE = {
    _AS_RUN: (PAPER_BOX, False),
    "live, published, no bounds": (_WIDE, False),
    "live, guarded, no bounds": (_WIDE, True),
}
"""Bounds of each climb, and whether it is the product's."""


def run_live(run: Run, name: str) -> dict[str, float]:
    """Run with one of the climbs in progress."""
    bounds, guarded = _LIVE[name]
    climb = (
        Tuner(TunerSettings(bounds=bounds, objective="ttft-p95", seed=run.seed), PAPER_INITIAL)
        if guarded
        else PublishedClimb(bounds, PAPER_INITIAL, seed=run.seed)
    )

    def prepare(fleet: VirtualFleet) -> None:
        fleet.director.use_tuner(climb)

    return run_policies(run, policies_of(run), prepare)


def run(scope: Scope) -> Report:
    """Run each climb live and frozen, with arrivals stretched by 1.5."""
    label = "gorgo-live"
    minutes, windows = (6.0, 6) if scope.quick else (20.0, 50)
    base = Run(time_scale=1.5, minutes=minutes)
    results = run_all({"frozen": tuned_elsewhere(base, scope.seeds, windows, label)}, label)
    traces = on_seeds(base, scope.seeds)
    for name in _LIVE:
        results[name] = sweep(run_live, [(run, name) for run in traces], label=label)
    frozen = results["frozen"]
    return Report(
        tables=[results_table(results, f"time x 1.5, {len(traces)} seeds")],
        evidence={"live-tail": {"": paired(results[_AS_RUN], frozen, "ttft_p99_s")}},
        remarks=[
            f"{name}: p99 TTFT {change(results[name], frozen, 'ttft_p99_s')} against frozen, "
            "on average"
            for name in _LIVE
        ],
    )


EXPERIMENTS = declared(__name__, {"gorgo-live": run})
