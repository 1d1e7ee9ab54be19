"""Is the default ever worse than the best policy for the given traffic?

`suite` runs any policies on any workloads and gives no verdicts. It is meant for developing
policies, on separate seeds (from 100 on) and on the workloads used for selection. `no-regret`
tests the claim on all workloads, with margins, tests and seeds as in docs/decisions/0013. The
leads over the best single baseline are tested here, which is stricter than the plain means of the
decision.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laar.errors import SettingError
from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report
from laar_lab.statistics import log_ratios
from laar_lab.suite.runs import BASELINES, OURS, Results, chosen, run_all, run_screened, table_of
from laar_lab.suite.table import cases
from laar_lab.suite.verdict import MARGINS, compare, geometric

_QUICK_SHARE = 0.2
_QUICK_BASELINES = ("least-loaded", "lmetric", "smg")
_QUICK_CASES = ("router-8", "regions", "agents-8k", "parallel-mixed")
_SHOWN_BASELINES = ("lmetric", "smg", "llm-d", "llm-d-guide:prefill_tokens_per_s=0", "least-loaded")
_CALLED = {
    "ttft_mean_s": "mean TTFT",
    "ttft_p50_s": "p50 TTFT",
    "ttft_p95_s": "p95 TTFT",
    "e2e_mean_s": "mean E2E",
    "e2e_p95_s": "p95 E2E",
}
_BY_WORKLOAD = "policies by workload"
_LEADS = ("ttft_p95_s", "e2e_mean_s", "e2e_p95_s")
"""Metrics in which laar should beat the best single baseline over all workloads."""


def run_suite(scope: Scope) -> Report:
    """Run any policies on any workloads; by default, on the workloads used for selection."""
    known = cases(scope.data)
    picked = scope.workloads or tuple(case.name for case in known if case.role == "choose")
    policies = scope.policies or (OURS, *_SHOWN_BASELINES)
    if scope.quick:
        picked, policies = scope.workloads or _QUICK_CASES[:2], policies[:3]
    results = run_all(
        chosen(known, picked),
        policies,
        scope.seeds,
        "suite",
        share=_QUICK_SHARE if scope.quick else 1.0,
    )
    return Report(tables=[table_of(results, _BY_WORKLOAD)])


def run_no_regret(scope: Scope) -> Report:
    """Judge the default against the best baseline on each workload."""
    known, label = cases(scope.data), "no-regret"
    rivals = _QUICK_BASELINES if scope.quick else BASELINES
    ours, *baselines = policies = scope.policies or (OURS, *rivals)
    if not baselines:
        raise SettingError("give at least two policies; the first is judged against the others")
    names = scope.workloads
    if scope.quick and not names:
        names = _QUICK_CASES
    picked = chosen(known, names)
    if scope.quick:
        results = run_all(picked, policies, scope.seeds, label, share=_QUICK_SHARE)
        return Report(tables=[table_of(results, _BY_WORKLOAD)])
    results = run_screened(picked, policies, scope.seeds, label)
    compared = compare(results, ours, baselines)
    roles = {case.name: case.role for case in known}
    evidence: dict[str, dict[str, Seen]] = {}
    for each in compared:
        runs = results[each.case]
        is_median, role = each.metric == "ttft_p50_s", roles[each.case]
        of_role = evidence.setdefault(f"{role}-median" if is_median else role, {})
        words = (each.case, *(() if is_median else (_CALLED[each.metric],)), each.best)
        of_role[", ".join(words)] = paired(runs[ours], runs[each.best], each.metric)
    evidence["none-fails"] = {
        case: Seen([run["failed"] for run in runs[ours]]) for case, runs in results.items()
    }
    if not scope.workloads:
        evidence |= _leads(results, ours, baselines)
    return Report(
        evidence=evidence,
        numbers={
            case: {
                metric: {policy: [run[metric] for run in of] for policy, of in runs.items()}
                for metric in MARGINS
            }
            for case, runs in results.items()
        },
    )


def _leads(results: Results, ours: str, baselines: Sequence[str]) -> dict[str, dict[str, Seen]]:
    """Return the evidence on laar beside the best single baseline, by claim."""
    found = {}
    for metric in _LEADS:
        best, _ = geometric(results, ours, baselines, metric)
        name = _CALLED[metric].replace(" ", "-").lower()
        found[f"lead-{name}"] = {best: _by_seed(results, ours, best, metric)}
    return found


def _by_seed(results: Results, ours: str, best: str, metric: str) -> Seen:
    """Return the geometric mean over the workloads of ours / best, by seed.

    For seeds that a dropped baseline did not run, the workload's mean is used.
    """
    seeds = max(len(runs[ours]) for runs in results.values())
    logs = []
    for runs in results.values():
        theirs = runs[best]
        pair = paired(runs[ours][: len(theirs)], theirs, metric)
        ratios = log_ratios(pair.ours, pair.theirs)
        logs.append([*ratios, *[float(np.mean(ratios))] * (seeds - len(ratios))])
    return Seen([float(ratio) for ratio in np.exp(np.mean(logs, axis=0))], [1.0] * seeds)


EXPERIMENTS = declared(__name__, {"suite": run_suite, "no-regret": run_no_regret})
