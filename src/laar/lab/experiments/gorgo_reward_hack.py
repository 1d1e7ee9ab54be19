"""The reward hack: without a load weight one replica gets everything, and TTFT hardly shows it.

Published: 100 % on one replica, p95 TTFT 3 % better, p95 end to end five times worse. It takes a
decode-bound engine that prefills first (`gorgo-hack`): one that is overloaded still gives quick
first tokens, and starves whoever is decoding.
"""

from __future__ import annotations

import math
from dataclasses import replace

from laar.lab.experiment import Experiment, Scope
from laar.lab.experiments.gorgo_runs import Run, Runs, results_table, run_all
from laar.lab.intervals import estimate
from laar.lab.report import Check, Report
from laar.lab.workloads.sessions import GORGO_CHATS

__all__ = ["EXPERIMENTS", "RATES"]

RATES = (3.1, 3.25, 3.4)
"""Requests a second, of which a sixth is too long and never sent: 2.6 to 2.9 that are."""

_HACKED = (("rtt_weight", 0.23), ("queue_weight", 0.0))
_RESTORED = (("rtt_weight", 0.23), ("queue_weight", 0.05))


def run(scope: Scope) -> Report:
    """The same traces with the load weight at zero and restored."""
    tables, checks = [], []
    for rate in RATES[: 1 if scope.quick else None]:
        base = Run(
            policy="gorgo",
            seed=0,
            time_scale=1.0,
            minutes=8.0 if scope.quick else 15.0,
            profile="gorgo-hack",
            shape=replace(GORGO_CHATS, requests_per_s=rate),
        )
        runs = {
            "load weight 0": [replace(base, seed=s, gorgo=_HACKED) for s in scope.seeds],
            "load weight 0.05": [replace(base, seed=s, gorgo=_RESTORED) for s in scope.seeds],
            "laar": [replace(base, policy="laar", seed=s) for s in scope.seeds],
        }
        results = run_all(runs, f"gorgo-reward-hack {rate:g}/s")
        tables.append(results_table(results, f"{rate:g} requests a second"))
        checks += _checks(results, f"{rate:g}/s")
    return Report(tables=tables, checks=checks)


def _checks(results: Runs, where: str) -> list[Check]:
    hacked, healthy = results["load weight 0"], results["load weight 0.05"]

    def ratios(name: str) -> list[float]:
        return [a[name] / b[name] for a, b in zip(hacked, healthy, strict=True)]

    piled = estimate([run["near_share"] for run in hacked]).mean
    spread = estimate([run["concentration"] for run in healthy]).mean
    ttft, e2e = estimate(ratios("ttft_p95_s")), ratios("e2e_p95_s")
    needed = math.ceil(0.8 * len(e2e))
    doubled = sum(ratio >= 2.0 for ratio in e2e)
    return [
        Check(
            claim=f"{where}: at 0, at least 98 % go to the nearest; restored, at most 65 % to one",
            held=piled >= 0.98 and spread <= 0.65,
            seen=f"{piled:.1%} and {spread:.1%}",
        ),
        Check(
            claim=f"{where}: at 0, p95 TTFT is at most 1.10 of the restored, which is within 35 %",
            held=ttft.mean <= 1.10 and 1.0 / ttft.mean <= 1.35,
            seen=f"{ttft.mean:.2f}",
        ),
        Check(
            claim=f"{where}: at 0, p95 end to end is twice the restored in {needed} of {len(e2e)}",
            held=doubled >= needed,
            seen=f"in {doubled}; {min(e2e):.1f} to {max(e2e):.1f} times (published 5)",
        ),
    ]


EXPERIMENTS = (
    Experiment(
        name="gorgo-reward-hack",
        claim="A zero load weight piles everything on one replica, and TTFT alone likes it",
        source="GORGO section 6, the ablation of 2 April",
        run=run,
    ),
)
