"""Count the cases in which laar is within the margins of the best rule, from stored numbers.

Workloads that shaped the policies, others of the same generators, and real traces are counted
separately, because a single figure over all of them would hide differences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from laar_lab.suite.case import Numbers
from laar_lab.suite.runs import OURS
from laar_lab.suite.table import cases
from laar_lab.suite.verdict import MARGINS, compare, regrets, within_margins


def split(numbers: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> str | None:
    """Return sentences with the counts of all rules; None for other kinds of numbers."""
    if not numbers or any(set(metrics) != set(MARGINS) for metrics in numbers.values()):
        return None
    results = {case: _by_policy(metrics) for case, metrics in numbers.items()}
    baselines = [policy for policy in next(iter(results.values())) if policy != OURS]
    compared = compare(results, OURS, baselines)
    uses = {"choose": "generated, for selection", "judge": "generated, held out"}
    roles = {case.name: uses[case.role] for case in cases()}
    of, within = Counter[str](), Counter[str]()
    for each in compared:
        role = roles.get(each.case, "real, held out")
        of[role] += 1
        within[role] += each.log_ratio.mean <= math.log1p(MARGINS[each.metric])
    by_role = "; ".join(f"{within[role]} of {count} {role}" for role, count in sorted(of.items()))
    distances = regrets(results, [OURS, *baselines])
    counts = {policy: within_margins(logs) for policy, logs in distances.items()}
    others = sorted(baselines, key=counts.__getitem__, reverse=True)
    listed = ", ".join(f"`{name}` {counts[name]}" for name in others)
    verdicts = Counter(each.verdict for each in compared)
    tested = ", ".join(f"{verdicts[name]} {name}" for name in ("shown", "within", "open", "lost"))
    return (
        f"laar is within the margins of the best of {len(baselines)} rules in {within.total()} of"
        f" {of.total()} cases ({by_role}); by the tests, {tested}. By plain means over the"
        f" seeds that all rules ran on, laar is in {counts[OURS]}; the other rules: {listed}."
    )


def _by_policy(metrics: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, list[Numbers]]:
    """Return a workload's stored numbers as results by policy."""
    policies = next(iter(metrics.values()))
    return {
        policy: [
            dict(zip(metrics, values, strict=True))
            for values in zip(*(metrics[metric][policy] for metric in metrics), strict=True)
        ]
        for policy in policies
    }
