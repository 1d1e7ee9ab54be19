"""The usual times of a model's endpoints, and the pace of one of them beside the others.

Times are compared with the picker's own prediction, as logarithms of a ratio: prompts differ by
orders of magnitude, and a c(m) that is wrong by a factor is wrong for all siblings alike. Nothing
here is compared with a fixed limit, only with the times of the group.
"""

from __future__ import annotations

import math
from collections import deque

_GRAIN_S = 0.1
"""Added to the predicted time: it is next to nothing for a cached prompt, and does not include the
decoding of the answer."""

_WEIGHT = 0.05  # of a new time in the group's mean: the last forty or so
_SPREAD_LEAST = 0.3  # nothing is steadier than that
_SPREAD_AT_FIRST = 1.0
_DEVIATIONS = 3.0
_SIZES = 64
_QUICK = 0.1
_BRIEF = 0.5

_SLOT_MOST = 24.0  # times at one endpoint that its mean remembers
_SLOT_HALF_LIFE_S = 30.0
_FORGIVE_S = 10.0
"""Half-life of slowness without new samples: an endpoint with a high price gets no requests, and
would otherwise keep that price when it has long been quick again."""
_SURE_DEVIATIONS = 2.5
_MAX_PACE = 30.0
MIN_PACE = 1.5
"""Below it an endpoint counts as fast as its siblings: loads differ by as much for a while."""


def ratio(seconds: float, predicted_s: float) -> float:
    """Return the logarithm of the time taken over the time predicted."""
    return math.log((max(0.001, seconds)) / (predicted_s + _GRAIN_S))


class _Usual:
    """A mean and its spread, of logarithms."""

    def __init__(self) -> None:
        self.n = 0
        self.mean = 0.0
        self.variance = _SPREAD_AT_FIRST**2

    def add(self, value: float) -> None:
        self.n += 1
        weight = spread_weight = _WEIGHT
        if self.n < 20:  # a plain mean at first; the variance starts from a guess of some weight
            weight, spread_weight = 1.0 / self.n, 1.0 / (self.n + 4)
        delta = value - self.mean
        self.mean += weight * delta
        self.variance += spread_weight * (delta * (value - self.mean) - self.variance)

    @property
    def spread(self) -> float:
        return max(_SPREAD_LEAST, math.sqrt(max(0.0, self.variance)))


class GroupTimes:
    """The usual times among endpoints of one model, for streams or for whole answers.

    Times to each stage: accepted, answering, over.
    """

    def __init__(self) -> None:
        self._stages = (_Usual(), _Usual(), _Usual())
        self.total_s = _Usual()
        self.quick_s = 0.0
        """An answer in less time is suspect; 0 while that is not known."""
        self.brief_s = 0.0
        """The same for each of two answers in a row."""
        self.sizes: deque[float] = deque(maxlen=_SIZES)
        """Prompt tokens of the last requests that went well."""

    def saw(self, stage: int, seconds: float, predicted_s: float) -> None:
        """Note the time it took to reach a stage, counted from 1."""
        self._stages[stage - 1].add(ratio(seconds, predicted_s))

    def ended(self, seconds: float, value: float) -> None:
        """Note how long a whole answer took, and its `ratio`."""
        self._stages[2].add(value)
        total = self.total_s
        total.add(math.log(max(0.001, seconds)))
        if not total.n % 8:
            self.quick_s, self.brief_s = _QUICK * self.typical_s, _BRIEF * self.typical_s

    def limit_s(self, stage: int, predicted_s: float) -> float:
        """Return the time within which nearly all reach a stage; infinite while unknown."""
        usual = self._stages[stage - 1]
        if usual.n < 3:
            return math.inf
        bound = usual.mean + _DEVIATIONS * usual.spread
        return math.exp(min(bound, 20.0)) * (predicted_s + _GRAIN_S)

    @property
    def mean(self) -> float:
        """Mean logarithm of the whole answers' time against the predicted time."""
        return self._stages[2].mean

    @property
    def spread(self) -> float:
        """Spread of the whole answers' times, in logarithms."""
        return self._stages[2].spread

    @property
    def typical_s(self) -> float:
        """The geometric mean of a complete answer's seconds; 0 while unknown."""
        return math.exp(self.total_s.mean) if self.total_s.n else 0.0

    def lightness(self, tokens: float) -> float:
        """Return the share of the requests that went well recently which were at least as long."""
        if not self.sizes:
            return 1.0
        return sum(size >= tokens for size in self.sizes) / len(self.sizes)


class SlotPace:
    """The times of one endpoint's whole answers."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.n = 0.0
        self.at = 0.0

    def add(self, value: float, now: float) -> None:
        """Note the logarithm of a ratio."""
        if now - self.at > 1.0:  # in steps: it is called for every request
            self.n = self.weight(now)
            self.at = now
        self.n = min(self.n + 1.0, _SLOT_MOST)
        self.mean += (value - self.mean) / self.n

    def weight(self, now: float) -> float:
        """Return how many times the mean stands for by now."""
        return self.n * math.exp2(-max(0.0, now - self.at) / _SLOT_HALF_LIFE_S)

    def pace(self, siblings: float, spread: float, now: float) -> float:
        """Return how many times slower than its siblings it is beyond chance; 1 or more."""
        n = self.weight(now)
        if n < 1.0:
            return 1.0
        sure = self.mean - siblings - _SURE_DEVIATIONS * spread / math.sqrt(n)
        pace = math.exp(min(sure, math.log(_MAX_PACE)))
        pace = 1.0 + (pace - 1.0) * math.exp2(-max(0.0, now - self.at) / _FORGIVE_S)
        return pace if pace >= MIN_PACE else 1.0
