"""The default policy against all baselines: conversations at three loads.

Both sides run with the product's settings. A scrape every second and a probe every five seconds
favor baselines that rely on scraped numbers (GORGO's proxy scrapes every 30 s). True session
affinity is given the session's name, and `lmetric` has nothing to tune. Runs last half an hour,
like GORGO's windows, because on shorter traces a 95th percentile can't show a few percent.
"""

from __future__ import annotations

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_runs import Run, by_policy, run_all
from laar_lab.report import Report

_OURS = "laar"
_LOADS = (1.0, 1.5, 2.0)
_BASELINES = (
    "gorgo",
    "load-aware",
    "llm-d",
    "llm-router",
    "aibrix-prefix-cache",
    "sglang-cache-aware",
    "lmetric",
    "least-request",
    "least-load",
    "simple-session-affinity",
    "session-affinity",
    "least-loaded",
    "round-robin",
    "random",
)
"""Rules to compare with; `no-regret` has more, such as SMG and vLLM's router."""
_QUICK = ("lmetric", "session-affinity", "sglang-cache-aware")
_NAMES = {
    "ttft_mean_s": "mean TTFT",
    "e2e_mean_s": "mean E2E",
    "ttft_p95_s": "p95 TTFT",
    "e2e_p95_s": "p95 E2E",
}


def run(scope: Scope) -> Report:
    """Run every policy at every load."""
    baselines = _QUICK if scope.quick else _BASELINES
    evidence: dict[str, dict[str, Seen]] = {}

    def compare(base: Run, name: str) -> None:
        runs = by_policy(base, (_OURS, *baselines), scope.seeds)
        results = run_all(runs, f"gorgo-baselines {name}")
        for metric, called in _NAMES.items():
            of_metric = evidence.setdefault(called.replace(" ", "-").lower(), {})
            of_metric |= {
                f"{name}, {other}": paired(results[_OURS], results[other], metric)
                for other in baselines
            }

    for scale in (1.5,) if scope.quick else _LOADS:
        base = Run(time_scale=scale, minutes=6.0 if scope.quick else 30.0)
        compare(base, f"x{scale:g}")
    return Report(evidence=evidence)


EXPERIMENTS = declared(__name__, {"gorgo-baselines": run})
