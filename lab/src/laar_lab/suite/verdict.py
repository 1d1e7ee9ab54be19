"""The suite's judgement: paired log-ratios, non-inferiority margins, Holm's correction.

Every policy meets the same requests on the same network for a seed, so the comparison uses the
logarithm of the ratio of two policies' figures, seed by seed. Its mean has Student's interval, and
the exponential of that is a ratio: 1.03 is three per cent worse.

**The best baseline** of a workload and a metric is the baseline whose mean log is smallest on the
seeds judged on. It is found on the same figures it is compared on, so chance favours it: an error
on the strict side.

**Non-inferiority.** The hypothesis to refute is "worse by the margin or more": a one-sided t test
of the mean log-ratio against log(1 + margin), at 5 %. The claim over all workloads is that every
one of these is refuted, which is wrong with a chance of 5 % at most without any correction (an
intersection-union test). Claims on single workloads are corrected for their number, over all
workloads and metrics together, by Holm's procedure:

- `shown`: refuted, after the correction;
- `within`: refuted, before it only;
- `lost`: shown to be worse than equal, after the correction, and beyond the margin on average;
- `open`: none of these: the seeds are too few for a verdict.

Seeds without scatter (a deterministic tie) give a test with no width: the mean alone decides.
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
"""The judged metrics, and by how much a value may exceed the best baseline's as still as good."""

FAR = 0.15
"""A baseline so far behind another one in every metric is not looked at on further seeds."""

Runs = Mapping[str, Sequence[Numbers]]
"""Numbers by policy, one for each seed; a baseline that was dropped early has only the first
ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One workload and metric: ours against the best baseline.

    Args:
        case: the workload.
        metric: a key of `MARGINS`.
        best: the baseline.
        log_ratio: mean of log(ours / best) and its 95 % interval.
        within: whether "worse by the margin or more" is refuted.
        verdict: `shown`, `within`, `lost` or `open`; see the module's text.
    """

    case: str
    metric: str
    best: str
    log_ratio: Estimate
    within: bool
    verdict: str

    @property
    def percent(self) -> Estimate:
        """Per cent by which ours is worse."""
        mean = 100.0 * (math.exp(self.log_ratio.mean) - 1.0)
        return Estimate(mean, 100.0 * math.exp(self.log_ratio.mean) * self.log_ratio.half)


def _logs(runs: Sequence[Numbers], metric: str) -> list[float]:
    return [math.log(max(run[metric], 1e-9)) for run in runs]


def best_of(runs: Runs, baselines: Sequence[str], metric: str) -> str:
    """Return the baseline with the smallest mean log."""
    return min(baselines, key=lambda name: float(np.mean(_logs(runs[name], metric))))


def contenders(runs: Runs, baselines: Sequence[str]) -> list[str]:
    """Return the baselines that are the best, or not far from it, in some metric."""
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
    """Ours against the best baseline of each workload and metric.

    Args:
        results: runs by workload.
        ours: the policy that is judged.
        baselines: the others.
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
    """Return the best single baseline over all workloads, and how much less ours is than it.

    The workloads weigh the same; the interval is over them, for they are what would be others.
    """

    def less(policy: str) -> list[float]:
        """Log-ratios of ours and another, over the seeds that both have, by workload."""
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
    """Each policy's distance from the best of all, by policy: log-ratios of means.

    One for each workload and metric, in the order of the workloads and of `MARGINS`; over the seeds
    that every policy has, and without a test: they show the values that no policy reaches.
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
    """Return how many of a policy's distances, as `regrets` has them, are within the margins."""
    limits = [math.log1p(margin) for margin in MARGINS.values()]
    return sum(log <= limits[at % len(limits)] for at, log in enumerate(logs))
