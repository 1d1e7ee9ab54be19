"""The reward hack: without a load weight one endpoint gets everything, and TTFT hardly shows it.

In the paper one endpoint gets 100 % of requests, p95 TTFT is 3 % better and p95 E2E is five times
worse. The hack needs a decode-bound engine that prefills first (`gorgo-hack`): under overload such
an engine still returns first tokens quickly, and starves the requests that are decoding.
"""

from __future__ import annotations

from dataclasses import replace

from laar_lab.claims import Seen, level, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.gorgo_runs import Run, on_seeds, run_all
from laar_lab.report import Report
from laar_lab.workloads.sessions import GORGO_CHATS

RATES = (3.1, 3.25, 3.4)
"""Requests per second. A sixth of them are too long and never sent, which leaves 2.6 to 2.9."""

_HACKED = (("rtt_weight", 0.23), ("queue_weight", 0.0))
_RESTORED = (("rtt_weight", 0.23), ("queue_weight", 0.05))


def run(scope: Scope) -> Report:
    """Run the same traces with the load weight at zero and restored."""
    evidence: dict[str, dict[str, Seen]] = {}
    for rate in RATES[: 1 if scope.quick else None]:
        base = Run(
            minutes=8.0 if scope.quick else 15.0,
            profile="gorgo-hack",
            shape=replace(GORGO_CHATS, requests_per_s=rate),
        )
        runs = {
            "load weight 0": on_seeds(base, scope.seeds, gorgo=_HACKED),
            "load weight 0.05": on_seeds(base, scope.seeds, gorgo=_RESTORED),
            "laar": on_seeds(base, scope.seeds, policy="laar"),
        }
        results = run_all(runs, f"gorgo-reward-hack {rate:g}/s")
        hacked, healthy = results["load weight 0"], results["load weight 0.05"]
        where = f"{rate:g}/s"
        for claim, seen in {
            "piled-up": level(hacked, "near_share"),
            "restored": level(healthy, "concentration"),
            "ttft-likes-it": paired(hacked, healthy, "ttft_p95_s"),
            "answers-suffer": paired(hacked, healthy, "e2e_p95_s"),
        }.items():
            evidence.setdefault(claim, {})[where] = seen
    return Report(evidence=evidence)


EXPERIMENTS = declared(__name__, {"gorgo-reward-hack": run})
