"""All statistics of the lab: means with 95 % intervals, tests, and the power of tests.

Policies that run on the same seeds get the same requests and the same network, so their difference
varies far less between seeds than either policy does; comparisons are therefore paired by seed.
Ratios are averaged as logarithms and transformed back, so that ratios of 2 and 1/2 cancel out.
Intervals and tests are Student's: with few seeds, intervals are wide and tests weak, so less data
never makes a claim easier to show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student  # type: ignore[import-untyped]

CONFIDENCE = 0.95
ALPHA = 0.05
"""Probability of showing a wrong claim, for a whole family of claims."""

POWER = 0.8
"""Probability of showing an effect of the size reported as detectable."""

_NO_SCATTER = 1e-12
_SMALLEST = 1e-9  # smallest argument of a logarithm


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds, and the half width of its 95 % interval; NaN for a single seed."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        """The interval's lower end, or the mean itself for a single seed."""
        return self.mean - (self.half if self.half == self.half else 0.0)

    @property
    def high(self) -> float:
        """The interval's upper end, or the mean itself for a single seed."""
        return self.mean + (self.half if self.half == self.half else 0.0)


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of the values: one per seed, at least one."""
    array = np.asarray(values, np.float64)
    n = len(array)
    if n < 2:
        return Estimate(float(array.mean()), float("nan"))
    half = student.ppf(0.5 + CONFIDENCE / 2, n - 1) * array.std(ddof=1) / n**0.5
    return Estimate(float(array.mean()), float(half))


def mean(runs: Sequence[Mapping[str, float]], name: str) -> Estimate:
    """Return the mean of one number over runs, one run per seed."""
    return estimate([run[name] for run in runs])


def gain(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Return the mean reduction 1 - ours / theirs, paired by seed."""
    return estimate([1.0 - a / b for a, b in zip(ours, theirs, strict=True)])


def log_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the logarithms of ours / theirs, paired by seed."""
    pairs = zip(ours, theirs, strict=True)
    return [math.log(max(a, _SMALLEST) / max(b, _SMALLEST)) for a, b in pairs]


def below_zero(values: Sequence[float]) -> float:
    """Return the one-sided p value of "the mean is 0 or more"; 1 for a single seed.

    If all values are equal (a deterministic tie), there is no t statistic; the mean's sign decides.
    """
    array = np.asarray(values, np.float64)
    n = len(array)
    spread = float(array.std(ddof=1)) if n > 1 else math.nan
    mean = float(array.mean())
    if math.isnan(spread) or math.isnan(mean):
        return 1.0
    if spread < _NO_SCATTER:
        return 0.0 if mean < 0 else 1.0
    return float(student.cdf(mean / (spread / math.sqrt(n)), n - 1))


def holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[bool]:
    """Return whether Holm's procedure rejects each hypothesis."""
    refuted = [False] * len(p_values)
    for tested, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > alpha / (len(p_values) - tested):
            break
        refuted[index] = True
    return refuted


def detectable(values: Sequence[float]) -> float:
    """Return the smallest effect that can be shown with power `POWER`, given this scatter.

    It is in the unit of the values, and NaN if there are fewer than two.
    """
    n = len(values)
    if n < 2:
        return math.nan
    spread = float(np.asarray(values, np.float64).std(ddof=1))
    quantiles = student.ppf(1.0 - ALPHA, n - 1) + student.ppf(POWER, n - 1)
    return float(quantiles * spread / math.sqrt(n))


def seeds_for(values: Sequence[float], effect: float) -> float:
    """Return how many seeds would show an effect, given this scatter; infinite for no effect."""
    least = detectable(values)
    if effect == 0.0 or math.isnan(least):
        return math.inf
    return max(3.0, math.ceil(len(values) * (least / abs(effect)) ** 2))
