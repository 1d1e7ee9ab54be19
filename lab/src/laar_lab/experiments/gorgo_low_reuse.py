"""Without reuse a prefix-aware score has little to offer: the rest of it must not hurt.

Single questions of about 840 tokens. The authors' first version took the round trip in seconds, a
thousandth of the intended value, and lost to random; it is injected here. The published weights of
this load are 2.0 tokens a millisecond (on the edge of their box) and 0.104.

Injected here it does not lose: the rest of the score balances queued tokens, which random does
not, and only the median feels the distances. So the published loss had another cause than
the unit alone; the authors name bursts as well.
"""

from __future__ import annotations

from dataclasses import replace

from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_runs import PAPER_WILDCHAT, Run, results_table, run_all
from laar_lab.report import Report
from laar_lab.workloads.sessions import WILDCHAT

_IN_SECONDS = (("rtt_weight", 2.0 / 1000.0), ("queue_weight", 0.104))
_RIGHT, _BUG = "gorgo", "gorgo, RTT in seconds"


def run(scope: Scope) -> Report:
    """5.7 requests a second, half of the trace's own pace."""
    base = Run(
        policy="gorgo",
        seed=0,
        time_scale=2.0,
        minutes=3.0 if scope.quick else 8.0,
        shape=WILDCHAT,
    )
    runs = {
        _RIGHT: [replace(base, seed=seed, gorgo=PAPER_WILDCHAT) for seed in scope.seeds],
        _BUG: [replace(base, seed=seed, gorgo=_IN_SECONDS) for seed in scope.seeds],
    }
    for policy in ("laar", "random", "simple-session-affinity", "least-request", "least-load"):
        runs[policy] = [replace(base, policy=policy, seed=seed) for seed in scope.seeds]
    results = run_all(runs, "gorgo-low-reuse")
    return Report(
        tables=[results_table(results, "single questions, 5.7 a second")],
        evidence={
            name: {"": paired(results[ours], results[theirs], "ttft_p95_s")}
            for name, (ours, theirs) in _PAIRS.items()
        },
    )


_PAIRS = {
    "loses-to-affinity": (_RIGHT, "simple-session-affinity"),
    "in-seconds": (_BUG, "random"),
    "below-random": (_RIGHT, "random"),
    "least-request": (_RIGHT, "least-request"),
}


EXPERIMENTS = declared(__name__, {"gorgo-low-reuse": run})
