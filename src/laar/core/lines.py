"""Least squares that forget: a few coefficients, learned from samples that come one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from laar.core.endpoints import Floats

__all__ = ["Line"]

FORGET = 0.998
"""What a sample still weighs after the next: some 500 samples count."""

FAR_OUT = 3.0
"""Errors beyond so many of their scale count no more than in proportion (Huber)."""

_EAGER = 50
_SOLVE_EVERY = 8
"""Samples between two solutions, once the first `_EAGER` are in: solving costs most."""


class Line:
    """A value as a sum of features, each with a coefficient inside bounds.

    Args:
        prior: coefficients to begin with.
        doubt: how far each may be off (one standard deviation), for samples whose scale is 1.
        low: what no coefficient falls below, whatever the samples say.
        high: what none rises above.
    """

    def __init__(
        self,
        prior: Sequence[float],
        doubt: Sequence[float],
        low: Sequence[float],
        high: Sequence[float],
    ) -> None:
        self.now: Floats = np.array(prior, np.float64)
        self.seen = 0
        self._prior = np.diag([1.0 / d**2 for d in doubt])
        self._prior_at: Floats = self._prior @ self.now
        self._squares = np.zeros_like(self._prior)
        self._products: Floats = np.zeros(len(self.now))
        self._low, self._high = np.array(low, np.float64), np.array(high, np.float64)

    def learn(self, features: Floats, value: float, scale: float, weight: float = 1.0) -> bool:
        """Takes a sample whose error is about `scale`; true when the coefficients changed."""
        if not (math.isfinite(value) and np.isfinite(features).all()):
            return False
        miss = abs(value - float(features @ self.now)) / scale
        if self.seen >= _SOLVE_EVERY and miss > FAR_OUT:
            weight *= FAR_OUT / miss
        weight /= scale * scale
        self._squares = FORGET * self._squares + weight * np.outer(features, features)
        self._products = FORGET * self._products + (weight * value) * features
        self.seen += 1
        if self.seen > _EAGER and self.seen % _SOLVE_EVERY:
            return False
        solved = np.linalg.solve(self._squares + self._prior, self._products + self._prior_at)
        self.now = np.clip(solved, self._low, self._high)
        return True

    def expect(self, prior: Sequence[float]) -> None:
        """Another prior, as much in doubt as the first."""
        self._prior_at = self._prior @ np.array(prior, np.float64)

    def rescale(self, factor: float) -> None:
        """The unit that values are in has become larger by this factor."""
        self._products /= factor
