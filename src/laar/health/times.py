"""The typical times of a model's endpoints.

Times are compared with the picker's own prediction, as log ratios: prompts differ by orders of
magnitude, and a c(m) that is off by some factor is off by the same factor for all siblings. Nothing
here is compared with a fixed limit, only with the times of the group.
"""

from __future__ import annotations

import math
from collections import deque

_GRAIN_S = 0.1
"""Seconds added to the predicted time, which is near 0 for a cached prompt and excludes the
decoding of the answer."""

_WEIGHT = 0.05  # weight of a new time in the group's mean: about the last forty matter
_SPREAD_LEAST = 0.3  # minimum: real times are never steadier
_SPREAD_AT_FIRST = 1.0
_DEVIATIONS = 3.0
_SIZES = 64


class _Usual:
    """Running mean and spread of logarithms."""

    def __init__(self) -> None:
        self.n = 0
        self.mean = 0.0
        self.variance = _SPREAD_AT_FIRST**2

    def add(self, value: float) -> None:
        self.n += 1
        weight = spread_weight = _WEIGHT
        if self.n < 20:  # a plain mean at first; the variance starts from a weighted guess
            weight, spread_weight = 1.0 / self.n, 1.0 / (self.n + 4)
        delta = value - self.mean
        self.mean += weight * delta
        self.variance += spread_weight * (delta * (value - self.mean) - self.variance)

    @property
    def spread(self) -> float:
        return max(_SPREAD_LEAST, math.sqrt(max(0.0, self.variance)))


class GroupTimes:
    """How long a model's answers, streamed or not, take to be accepted, begin and end."""

    def __init__(self) -> None:
        self._stages = (_Usual(), _Usual(), _Usual())
        self.sizes: deque[float] = deque(maxlen=_SIZES)
        """Prompt tokens of the latest successful requests."""

    def saw(self, stage: int, seconds: float, predicted_s: float) -> None:
        """Record the time taken to reach a stage; stages are numbered from 1."""
        self._stages[stage - 1].add(math.log(max(0.001, seconds) / (predicted_s + _GRAIN_S)))

    def ended(self, seconds: float, predicted_s: float) -> None:
        """Record the time of a complete answer."""
        self.saw(3, seconds, predicted_s)

    def limit_s(self, stage: int, predicted_s: float) -> float:
        """Return the time in which nearly all attempts reach a stage; infinite while unknown."""
        usual = self._stages[stage - 1]
        if usual.n < 3:
            return math.inf
        bound = usual.mean + _DEVIATIONS * usual.spread
        return math.exp(min(bound, 20.0)) * (predicted_s + _GRAIN_S)

    def lightness(self, tokens: float) -> float:
        """Return the share of recent successful requests with a prompt at least this long."""
        if not self.sizes:
            return 1.0
        return sum(size >= tokens for size in self.sizes) / len(self.sizes)
