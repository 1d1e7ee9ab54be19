"""GORGO on a saturated fleet: affinity keeps TTFT short while whole answers get slow.

The published results, without stretching time, are a p95 E2E of 8.9 s against 13.7 s for the best
baseline, and a p95 TTFT slightly above affinity's. Weights are tuned on a separate trace, as in
`gorgo-heldout`.
"""

from __future__ import annotations

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_heldout import best_baseline, tune_and_run
from laar_lab.report import Report


def run(scope: Scope) -> Report:
    """Run at the trace's rate."""
    results = tune_and_run(scope, 1.0, "gorgo-saturation")
    ours, affinity = results["gorgo, tuned"], results["simple-session-affinity"]
    best = best_baseline(results, "e2e_p95_s")
    return Report(
        evidence={
            "answers-x1": {"": Seen([run["e2e_p95_s"] for run in ours], best)},
            "first-tokens": {"": paired(ours, affinity, "ttft_p95_s")},
        }
    )


EXPERIMENTS = declared(__name__, {"gorgo-saturation": run})
