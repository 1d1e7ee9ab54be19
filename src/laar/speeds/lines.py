"""Recursive least squares with forgetting: a few coefficients, learned sample by sample."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from laar.fleet.endpoints import Floats

FORGET = 0.998
"""Weight of a sample relative to the next one: about the last 500 samples matter."""

FAR_OUT = 3.0
"""Errors above this multiple of their scale count linearly (Huber)."""

_EAGER = 16
_TOGETHER = 8
"""Number of samples per batch after the first `_EAGER`, since solving is the expensive part."""
_LARGEST = 1e9
"""Samples with larger values are rejected: the squares must stay finite."""


class FittedLine:
    """A linear model with bounded coefficients.

    Args:
        prior: initial coefficients.
        doubt: standard deviation of each prior, for samples whose scale is 1.
        low: lower bound of each coefficient.
        high: upper bound of each coefficient.
    """

    def __init__(
        self,
        prior: Sequence[float],
        doubt: Sequence[float],
        low: Sequence[float],
        high: Sequence[float],
    ) -> None:
        self.now = [float(factor) for factor in prior]
        self.seen = 0
        self._prior = [1.0 / d**2 for d in doubt]
        self.expect(prior)
        size = len(self.now)
        # State that changes with each sample is in lists: arrays of up to six numbers are slower.
        self._squares = np.zeros((size, size))
        self._products = [0.0] * size
        self._low: Floats = np.array(low)
        self._high: Floats = np.array(high)
        self.level = 0.0
        """Logarithm of how much the predictions for recent samples have changed since the start."""
        self._recent: Floats = np.zeros(size)  # sum of features, each divided by its scale
        self._pending: list[tuple[float, ...]] = []

    def guess(self, features: Sequence[float]) -> float:
        """Return the value that the coefficients predict for the features."""
        return sum(map(float.__mul__, self.now, features))

    def learn(
        self, features: Sequence[float], value: float, scale: float, weight: float = 1.0
    ) -> bool:
        """Add a sample with an error of about `scale`; return whether coefficients changed."""
        if (
            len(features) != len(self.now)  # from a different version
            or not all(map(_LARGEST.__gt__, map(abs, (*features, value))))  # NaN fails too
            or not 0.0 < scale < _LARGEST
        ):
            return False
        miss = abs(value - self.guess(features)) / scale
        if self.seen >= _TOGETHER and miss > FAR_OUT:
            weight *= FAR_OUT / miss
        root = math.sqrt(weight) / scale
        self._pending.append((*[root * feature for feature in features], root * value))
        self.seen += 1
        return (self.seen <= _EAGER or len(self._pending) >= _TOGETHER) and self.work_out()

    def work_out(self) -> bool:
        """Fit the coefficients to the prior and all samples; return whether that succeeded."""
        rows = np.array(self._pending).reshape(-1, len(self.now) + 1)
        self._pending.clear()
        fade = FORGET ** len(rows)
        left = rows[:, :-1]
        squares = fade * self._squares + left.T @ left
        products = fade * np.array(self._products) + left.T @ rows[:, -1]
        try:
            now = self._solve(squares + np.diag(self._prior), products + self._expected)
        except np.linalg.LinAlgError:  # one feature is so large that all others are rounded away
            return False
        self._recent = fade**5 * self._recent + np.add.reduce(left)
        before, after = float(self._recent @ self.now), float(self._recent @ now)
        if before > 0.0 and after > 0.0:
            self.level += math.log(after) - math.log(before)  # their ratio may be infinite
        self.now = now
        self._squares, self._products = squares, products.tolist()
        return True

    def error(self, at: int) -> float:
        """Return the standard error of a coefficient. Thread-safe."""
        inverse = np.linalg.pinv(self._squares + np.diag(self._prior))
        return math.sqrt(max(float(inverse[at, at]), 0.0))

    def expect(self, prior: Sequence[float], doubt: Sequence[float] | None = None) -> None:
        """Replace the prior; without `doubt`, keep the standard deviations and coefficients."""
        if doubt is not None:
            self._prior = [1.0 / d**2 for d in doubt]
            self.now = self.now if self.seen else list(prior)
        self._expected = [sure * factor for sure, factor in zip(self._prior, prior, strict=True)]

    def rescale(self, factor: float) -> None:
        """Convert processed samples to a unit larger by `factor`; `work_out` updates `now`."""
        self._products = [product / factor for product in self._products]

    def fade(self, share: float) -> None:
        """Multiply the weights of all samples processed so far by `share`."""
        self._squares = self._squares * share
        self._products = [product * share for product in self._products]

    def restate(self, factors: Sequence[float]) -> None:
        """Convert all samples: from now on, features are larger by these factors."""
        scale = np.array(factors)
        self._recent = self._recent * scale
        self._squares = self._squares * np.outer(scale, scale)
        self._products = (np.array(self._products) * scale).tolist()
        self._pending = [tuple((np.array(row) * [*factors, 1.0]).tolist()) for row in self._pending]
        self.now = self._clip(np.array(self.now) / scale).tolist()

    def state(self) -> list[list[float]]:
        """Return the learned state: squares row by row, products, coefficients, count."""
        return [*self._squares.tolist(), self._products, self.now, [float(self.seen)]]

    def restore(self, state: object) -> bool:
        """Restore a result of `state`; if it does not match, change nothing and return False."""
        size = len(self.now)
        if not isinstance(state, list) or len(state) != size + 3:
            return False
        try:
            rows, seen = np.array(state[:-1], np.float64), float(state[-1][0])
        except (TypeError, ValueError, LookupError, OverflowError):
            return False
        if rows.shape != (size + 2, size) or not np.isfinite(rows).all() or not seen >= 0:
            return False
        self._squares, self._products = rows[:size], rows[size].tolist()
        self.now = self._clip(rows[size + 1]).tolist()
        self.seen = int(min(seen, 1e9))
        return True

    def _solve(self, squares: Floats, products: Floats) -> list[float]:
        """Return the best-fitting coefficients within their bounds.

        A coefficient beyond a bound is held at it while the others are fitted again. If it were
        only clipped, the others would stay fitted to a value that it does not have.
        """
        solved = np.asarray(np.linalg.solve(squares, products), np.float64)
        free = np.ones(len(solved), np.bool_)
        while (beyond := free & ((solved < self._low) | (solved > self._high))).any():
            free &= ~beyond
            solved = self._clip(solved)
            left = products - squares[:, ~free] @ solved[~free]
            solved[free] = np.linalg.solve(squares[np.ix_(free, free)], left[free])
        coefficients: list[float] = solved.tolist()
        return coefficients

    def _clip(self, coefficients: Floats) -> Floats:
        clipped: Floats = np.minimum(np.maximum(coefficients, self._low), self._high)
        return clipped
