"""GORGO's climb as published, with its flaws, to compare with the product's.

It evaluates each candidate once and never re-evaluates the best score. A window consists of the
last `window` completions, whatever weights were used for them, and is evaluated after every `hop`
of them. Because scores are negative, a candidate that is up to half a percent worse is accepted as
better.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping

import numpy as np

from laar_lab.tuning.tuner import Weights
from laar_lab.tuning.windows import Observed

_SIGMA, _SIGMA_MIN, _DECAY = 0.5, 0.05, 0.817
_OUTCOMES, _TARGET, _TOLERANCE = 8, 0.2, 0.005


class PublishedClimb:
    """GORGO's climb as published, used instead of laar's tuner.

    Args:
        bounds: lower and upper bound of each weight.
        initial: initial weights.
        seed: seed of the proposals.
        ttft: whether the objective is p95 TTFT, as published, or p95 E2E.
        window: completions per window.
        hop: completions between two evaluations.
    """

    def __init__(
        self,
        bounds: Mapping[str, tuple[float, float]],
        initial: Mapping[str, float],
        *,
        seed: int,
        ttft: bool = True,
        window: int = 128,
        hop: int = 32,
    ) -> None:
        self._bounds = bounds
        self.best = dict(initial)
        self._live: Mapping[str, float] = dict(initial)
        self._best_score: float | None = None
        self._rng = random.Random(seed)
        self._ttft = ttft
        self._hop = hop
        self._recent: deque[float] = deque(maxlen=window)
        self._since = 0
        self._outcomes: deque[bool] = deque(maxlen=_OUTCOMES)
        self._sigma = _SIGMA
        self.frozen = False

    def weights(self, now: float) -> Weights:
        """Return the current proposal."""
        return Weights(1, self._live)

    def observe(self, sample: Observed, now: float) -> None:
        """Record a completion; failures are ignored."""
        if not sample.ok or self.frozen:
            return
        self._recent.append(sample.ttft_s if self._ttft else sample.e2e_s)
        self._since += 1
        if len(self._recent) == self._recent.maxlen and self._since >= self._hop:
            self._since = 0
            self.report(-float(np.quantile(np.array(self._recent), 0.95)))

    def report(self, score: float) -> None:
        """Record the current proposal's score (higher is better) and make the next proposal."""
        if self._best_score is None:
            self._best_score = score
        else:
            won = score > self._best_score * (1.0 + _TOLERANCE)
            if won:
                self.best, self._best_score = dict(self._live), score
            self._outcomes.append(won)
            if len(self._outcomes) == _OUTCOMES:
                rate = sum(self._outcomes) / _OUTCOMES
                self._sigma *= 1.0 / _DECAY if rate > _TARGET else _DECAY
        if self._sigma < _SIGMA_MIN:
            self._live, self.frozen = self.best, True
            return
        self._live = {
            name: min(max(weight * math.exp(self._rng.gauss(0.0, self._sigma)), floor), cap)
            for name, weight in self.best.items()
            for floor, cap in (self._bounds[name],)
        }
