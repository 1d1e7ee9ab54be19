"""How the suite is judged: paired log-ratios, non-inferiority margins and Holm's correction.

With the same seed, every policy gets the same requests on the same network, so the comparison uses
the logarithm of the ratio of two policies' figures, seed by seed. Its mean has a Student interval,
and its exponential is a ratio: 1.03 is three percent worse.

**The best baseline** of a workload and a metric is the baseline with the smallest mean log over the
judged seeds. It is chosen by the same figures with which it is compared, so chance favors it, and
the comparison errs on the strict side.

**Non-inferiority.** The hypothesis to reject is "worse by the margin or more": a one-sided t test
of the mean log-ratio against log(1 + margin), at 5 %. The claim over all workloads is that every
such hypothesis is rejected; it is wrong with a probability of at most 5 % without any correction
(an intersection-union test). Claims on single workloads are corrected for their number by Holm's
procedure, over all workloads and metrics together:

- `shown`: rejected after the correction;
- `within`: rejected only before it;
- `lost`: shown to be worse than equal after the correction, and on average beyond the margin;
- `open`: none of these; the seeds are too few for a verdict.

Values without scatter (a deterministic tie) have no t statistic; the sign of the mean decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laar_lab.statistics import ALPHA, Estimate, below_zero, estimate, holm
from laar_lab.suite.case import Numbers

MARGINS = {
    "ttft_mean_s": 0.03,
    "ttft_p50_s": 0.10,
    "ttft_p95_s": 0.03,
    "e2e_mean_s": 0.03,
    "e2e_p95_s": 0.03,
}
"""The judged metrics, and the share by which each may exceed the best baseline's."""

FAR = 0.15
"""A baseline this far behind another in every metric is not run on more seeds."""

Runs = Mapping[str, Sequence[Numbers]]
"""Numbers by policy, one per seed; a baseline that was dropped early has fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Ours against the best baseline, for one workload and metric.

    Args:
        case: the workload.
        metric: a key of `MARGINS`.
        best: the best baseline.
        log_ratio: mean of log(ours / best) with its 95 % interval.
        within: whether "worse by the margin or more" is rejected without the correction.
        verdict: `shown`, `within`, `lost` or `open`; see the module's docstring.
    """

    case: str
    metric: str
    best: str
    log_ratio: Estimate
    within: bool
    verdict: str


def _logs(runs: Sequence[Numbers], metric: str) -> list[float]:
    return [math.log(max(run[metric], 1e-9)) for run in runs]


def best_of(runs: Runs, baselines: Sequence[str], metric: str) -> str:
    """Return the baseline with the smallest mean log."""
    return min(baselines, key=lambda name: float(np.mean(_logs(runs[name], metric))))


def contenders(runs: Runs, baselines: Sequence[str]) -> list[str]:
    """Return the baselines that are the best, or close to it, in some metric."""
    kept = []
    means = {
        metric: {name: float(np.mean(_logs(runs[name], metric))) for name in baselines}
        for metric in MARGINS
    }
    for name in baselines:
        behind = min(of[name] - min(of.values()) for of in means.values())
        if behind <= math.log1p(FAR):
            kept.append(name)
    return kept


def compare(results: Mapping[str, Runs], ours: str, baselines: Sequence[str]) -> list[Comparison]:
    """Compare ours with the best baseline for each workload and metric.

    Args:
        results: runs by workload.
        ours: the policy to judge.
        baselines: the other policies.
    """
    rows = []
    for case, runs in results.items():
        whole = [name for name in baselines if len(runs[name]) == len(runs[ours])]
        for metric, margin in MARGINS.items():
            best = best_of(runs, whole, metric)
            pairs = zip(_logs(runs[ours], metric), _logs(runs[best], metric), strict=True)
            ratios = [a - b for a, b in pairs]
            limit = math.log1p(margin)
            worse_by_margin = below_zero([r - limit for r in ratios])
            better_or_equal = below_zero([-r for r in ratios])
            rows.append((case, metric, best, estimate(ratios), worse_by_margin, better_or_equal))
    shown = holm([row[4] for row in rows])
    worse = holm([row[5] for row in rows])
    found = []
    for row, is_shown, is_worse in zip(rows, shown, worse, strict=True):
        case, metric, best, ratio, p_value, _ = row
        is_within = p_value <= ALPHA
        verdict = "shown" if is_shown else "within" if is_within else "open"
        if is_worse and ratio.mean > math.log1p(MARGINS[metric]):
            verdict = "lost"
        found.append(
            Comparison(
                case=case,
                metric=metric,
                best=best,
                log_ratio=ratio,
                within=is_within,
                verdict=verdict,
            )
        )
    return found


def geometric(
    results: Mapping[str, Runs], ours: str, baselines: Sequence[str], metric: str
) -> tuple[str, Estimate]:
    """Return the best single baseline over all workloads, and how far ours is below it.

    All workloads have the same weight. The interval is over the workloads, which are the sample.
    """

    def less(policy: str) -> list[float]:
        """Return log-ratios of ours to another by workload, over their common seeds."""
        found = []
        for runs in results.values():
            theirs = _logs(runs[policy], metric)
            found.append(float(np.mean(_logs(runs[ours], metric)[: len(theirs)]) - np.mean(theirs)))
        return found

    best = max(baselines, key=lambda policy: float(np.mean(less(policy))))
    ratios = less(best)
    found = estimate(ratios)
    ratio = math.exp(found.mean)
    return best, Estimate(1.0 - ratio, ratio * found.half)


def regrets(results: Mapping[str, Runs], policies: Sequence[str]) -> dict[str, list[float]]:
    """Return each policy's distances from the best of all, as log-ratios of means.

    There is one distance per workload and metric, in the order of the workloads and of `MARGINS`,
    over the seeds that every policy has. The distances are not tested.
    """
    found: dict[str, list[float]] = {policy: [] for policy in policies}
    for runs in results.values():
        seeds = min(len(runs[policy]) for policy in policies)
        for metric in MARGINS:
            logs = {
                policy: float(np.mean(_logs(runs[policy][:seeds], metric))) for policy in policies
            }
            for policy, value in logs.items():
                found[policy].append(value - min(logs.values()))
    return found


def within_margins(logs: Sequence[float]) -> int:
    """Return how many of a policy's distances, from `regrets`, are within the margins."""
    limits = [math.log1p(margin) for margin in MARGINS.values()]
    return sum(log <= limits[at % len(limits)] for at, log in enumerate(logs))
