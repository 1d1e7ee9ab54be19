"""Run the suite (workloads by policies by seeds) on all cores, and tabulate it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from laar.errors import SettingError, unknown
from laar_lab.policy_text import parse_policy
from laar_lab.report import Table, Value
from laar_lab.statistics import mean
from laar_lab.suite.case import Case, Numbers, run_case
from laar_lab.suite.verdict import contenders
from laar_lab.sweep import grid, sweep

SCREENED = 5
"""Number of seeds on which every baseline runs."""

OURS = "laar"

BASELINES = (
    "least-loaded",
    "lmetric",
    "smg",
    "smg:balance_abs_threshold=8",
    "vllm-router",
    "dynamo",
    "dynamo:shared_weight=0",
    "llm-d",
    "llm-d-guide:prefill_tokens_per_s=0",
    "llm-d-latency:drawn=0,tpot_weight=0.2",
    "aibrix-prefix-cache:stdevs=2",
    "gorgo:rtt_weight=0.68,queue_weight=0.115",
    "llm-router",
    "sticky-least-loaded",
)
"""Each peer's rule as published, or as its authors advise if that was better.

SMG's documentation advises lower balance thresholds for bursts and mixed workers. llm-d's guide
measures the prefill rate, and its predicted latency takes the best. Dynamo's documentation can be
read in two ways. AIBrix's readme allows two deviations. GORGO's weights are the middle result of
three climbs with its published tuner, bounds and initial weights, on seeds 100 to 102 of its
conversations at time x 1.5. Eight others, together the best in 7 of 200 cases on 15 seeds from
50000, are no longer run."""

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
    """Return the workloads with these names, or all if there are no names.

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
    cases: Sequence[Case],
    policies: Sequence[str],
    seeds: Sequence[int],
    label: str,
) -> Results:
    """Run like `run_all`, but only each workload's contenders on every seed.

    After `SCREENED` seeds, baselines that are far behind in every metric are dropped; the first
    policy never is.

    Args:
        cases: workloads.
        policies: the policy to judge, and the baselines.
        seeds: seeds to run.
        label: label of the progress bar.

    Raises:
        SettingError: a policy or parameter is unknown.
    """
    for policy in policies:
        parse_policy(policy)
    ours, *baselines = policies
    results: Results = {case.name: {policy: [] for policy in policies} for case in cases}
    _run_on(seeds[:SCREENED], cases, results, label)
    whole: Results = {}
    for name, runs in results.items():
        results[name] = {policy: of_one[:SCREENED] for policy, of_one in runs.items()}
        kept = (ours, *contenders(results[name], baselines))
        whole[name] = {policy: runs[policy] for policy in kept}
    _run_on(seeds, cases, whole, f"{label}, contenders")
    for name, runs in whole.items():
        results[name] |= runs
    return results


def _run_on(seeds: Sequence[int], cases: Sequence[Case], results: Results, label: str) -> None:
    """Run each policy of each workload on the seeds that its results lack, and add them."""
    runs = [
        (case, policy, 1.0, seed)
        for case in cases
        for policy, of_one in results[case.name].items()
        for seed in seeds[len(of_one) :]
    ]
    for (case, policy, *_), numbers in zip(runs, sweep(_run, runs, label=label), strict=True):
        results[case.name][policy].append(numbers)


def _run(case: Case, policy: str, share: float, seed: int) -> Numbers:
    return run_case(case, policy, seed, share=share)


def table_of(results: Results, title: str) -> Table:
    """Return a table with a row per workload and policy: means over its seeds, with intervals."""
    rows: list[tuple[Value, ...]] = [
        (case, policy, *(mean(of_one, name) for name in _SHOWN))
        for case, runs in results.items()
        for policy, of_one in runs.items()
    ]
    return Table(title=title, columns=("workload", "policy", *_SHOWN.values()), rows=rows, digits=3)
