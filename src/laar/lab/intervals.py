"""Means over seeds with 95 % intervals, and comparisons paired by seed.

Policies run on the same seeds meet the same requests and the same network, so their difference by
seed varies far less than either: intervals of gains are over those differences (Student's t).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student  # type: ignore[import-untyped]

__all__ = ["CONFIDENCE", "Estimate", "estimate", "gain"]

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and the half width of its 95 % interval; NaN width from one seed."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        """The interval's lower end; the mean itself where one seed gives no interval."""
        return self.mean - (self.half if self.half == self.half else 0.0)

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.mean + (self.half if self.half == self.half else 0.0)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of one number a seed, at least one."""
    array = np.asarray(values, np.float64)
    n = len(array)
    if n < 2:
        return Estimate(float(array.mean()), float("nan"))
    half = student.ppf(0.5 + CONFIDENCE / 2, n - 1) * array.std(ddof=1) / n**0.5
    return Estimate(float(array.mean()), float(half))


def gain(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """How much less ours is, as a share of theirs: 1 - ours / theirs, seed by seed."""
    return estimate([1.0 - a / b for a, b in zip(ours, theirs, strict=True)])
