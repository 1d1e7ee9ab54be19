"""Without reuse a prefix-aware score has little to offer; its other terms must not hurt.

The load consists of single questions of about 840 tokens. The authors' first version used the round
trip in seconds, a thousandth of the intended value, and lost to random. That bug is injected here.
The published weights for this load are 2.0 tokens per millisecond (at their upper bound) and 0.104.

Here the score does not lose even with the bug: its other terms balance queued tokens, which random
does not, and the distances affect only the median. So the published loss was not due to the unit
alone; the authors also mention bursts.
"""

from __future__ import annotations

from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_runs import (
    PAPER_WILDCHAT,
    Run,
    by_policy,
    on_seeds,
    run_all,
)
from laar_lab.report import Report
from laar_lab.workloads.sessions import WILDCHAT

_IN_SECONDS = (("rtt_weight", 2.0 / 1000.0), ("queue_weight", 0.104))
_RIGHT, _BUG = "gorgo", "gorgo, RTT in seconds"


_OTHERS = ("random", "simple-session-affinity")
_PAIRS = {
    "loses-to-affinity": (_RIGHT, "simple-session-affinity"),
    "in-seconds": (_BUG, "random"),
    "below-random": (_RIGHT, "random"),
}


def run(scope: Scope) -> Report:
    """Run at 5.7 requests per second, half of the trace's rate."""
    base = Run(time_scale=2.0, minutes=3.0 if scope.quick else 8.0, shape=WILDCHAT)
    runs = {
        _RIGHT: on_seeds(base, scope.seeds, gorgo=PAPER_WILDCHAT),
        _BUG: on_seeds(base, scope.seeds, gorgo=_IN_SECONDS),
        **by_policy(base, _OTHERS, scope.seeds),
    }
    results = run_all(runs, "gorgo-low-reuse")
    return Report(
        evidence={
            name: {"": paired(results[ours], results[theirs], "ttft_p95_s")}
            for name, (ours, theirs) in _PAIRS.items()
        },
    )


EXPERIMENTS = declared(__name__, {"gorgo-low-reuse": run})
