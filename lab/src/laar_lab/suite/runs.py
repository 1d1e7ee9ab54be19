"""Run the suite (workloads by policies by seeds) on all cores, and tabulate it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from laar.errors import SettingError, unknown
from laar_lab.policy_text import parse_policy
from laar_lab.report import Table, Value
from laar_lab.statistics import means
from laar_lab.suite.case import Case, Numbers, run_case
from laar_lab.suite.verdict import contenders
from laar_lab.sweep import grid

SCREENED = 5
"""Number of seeds on which every baseline runs."""

OURS = "laar"

BASELINES = (
    "least-loaded",
    "p2c",
    "lmetric",
    "smg",
    "smg:balance_abs_threshold=8",
    "smg-veto",
    "vllm-router",
    "dynamo",
    "dynamo:shared_weight=0",
    "llm-d",
    "llm-d-guide:prefill_tokens_per_s=0",
    "llm-d-latency",
    "llm-d-latency:drawn=0,tpot_weight=0.2",
    "aibrix-prefix-cache",
    "aibrix-prefix-cache:stdevs=2",
    "gorgo",
    "gorgo:rtt_weight=0.68,queue_weight=0.115",
    "llm-router",
    "llm-router:saturation_inflight=4",
    "session-affinity",
    "sticky-least-loaded",
    "round-robin",
)
"""Every rule at its best: as published, and with its authors' advice if that differs.

SMG's documentation advises lower balance thresholds for bursts and mixed workers; llm-d's guide
measures the prefill rate, and its predicted latency picks at random, as in its chart, or the best;
Dynamo's sum runs in both readings of its documentation; AIBrix has one deviation in its code, two
in its readme; llm-router's benchmark has a valve of 4, its code 8. GORGO's second weights are the
middle ones of three climbs with its published tuner, box and start on the seeds 100 to 102 of its
conversations at time x 1.5."""

_SHOWN = {
    "ttft_mean_s": "TTFT mean s",
    "ttft_p50_s": "p50",
    "ttft_p95_s": "p95",
    "e2e_mean_s": "E2E mean s",
    "e2e_p95_s": "p95",
    "hit_rate": "hit rate",
    "busiest": "busiest",
    "failed": "failed",
}

Results = dict[str, dict[str, list[Numbers]]]
"""Numbers by workload and policy, one per seed."""


def chosen(cases: Sequence[Case], names: Sequence[str]) -> tuple[Case, ...]:
    """Return the workloads with these names; without names, all of them.

    Raises:
        SettingError: a name is unknown.
    """
    known = {case.name: case for case in cases}
    for name in names:
        if name not in known:
            raise SettingError(unknown("workload", name, known))
    return tuple(known[name] for name in names) if names else tuple(cases)


def run_all(
    cases: Sequence[Case],
    policies: Sequence[str],
    seeds: Sequence[int],
    label: str,
    *,
    share: float = 1.0,
) -> Results:
    """Run every workload with every policy on every seed.

    Raises:
        SettingError: a policy or parameter is unknown.
    """
    for policy in policies:
        parse_policy(policy)
    runs = {(case.name, policy): (case, policy, share) for case, policy in product(cases, policies)}
    found = grid(_run, runs, seeds, label=label)
    return {case.name: {policy: found[case.name, policy] for policy in policies} for case in cases}


def run_screened(
    cases: Sequence[Case], policies: Sequence[str], seeds: Sequence[int], label: str
) -> Results:
    """Run like `run_all`, but only each workload's contenders on every seed.

    After `SCREENED` seeds, baselines that are far behind in every metric are dropped; the first
    policy never is.
    """
    ours, *baselines = policies
    results = run_all(cases, policies, seeds[:SCREENED], label)
    runs = {
        (case.name, policy): (case, policy, 1.0)
        for case in cases
        for policy in (ours, *contenders(results[case.name], baselines))
    }
    found = grid(_run, runs, seeds[SCREENED:], label=f"{label}, contenders")
    for (name, policy), numbers in found.items():
        results[name][policy] += numbers
    return results


def _run(case: Case, policy: str, share: float, seed: int) -> Numbers:
    return run_case(case, policy, seed, share=share)


def table_of(results: Results, title: str) -> Table:
    """Return a row per workload and policy: means over its seeds with their intervals."""
    rows: list[tuple[Value, ...]] = [
        (case, policy, *means(of_one, _SHOWN))
        for case, runs in results.items()
        for policy, of_one in runs.items()
    ]
    return Table(title=title, columns=("workload", "policy", *_SHOWN.values()), rows=rows, digits=3)
