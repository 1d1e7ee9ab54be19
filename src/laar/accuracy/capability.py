"""Q(m, x): the success probability of each model on a request, served from a fitted artifact.

On the request path this is a table look-up: the log odds of a cell are summed once and the whole
row of models is kept. Retries shift that row by the artifact's retry terms, because failures are
not independent: a query that one model failed is harder than its features say (the paper assumes
independence, LAAR section 5.1).

What was never measured is not guessed at: a bucket between two measured ones takes the one above,
a longer one the longest; a language or task that was not measured takes the mean over those that
were; a model that was not measured takes the mean of the fleet, and `evidence` says so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import (
    MIN_CELL_OUTCOMES,
    Capability,
    ModelCapability,
    terms_of,
)
from laar.accuracy.features import Features

__all__ = [
    "MAX_CACHED_ROWS",
    "MAX_PROBABILITY",
    "MIN_PROBABILITY",
    "UNMEASURED_PROBABILITY",
    "UNMEASURED_SECONDS_PER_TOKEN",
    "CapabilityModel",
    "Evidence",
]

MIN_PROBABILITY, MAX_PROBABILITY = 0.001, 0.999
"""Q stays inside: a cost is divided by it, and no evidence shows that a model never fails."""

MAX_CACHED_ROWS = 4096
"""Sets of candidates times cells; beyond it the table starts anew, which costs microseconds."""

UNMEASURED_PROBABILITY = 0.5
"""Q without any artifact: the same for all, so that it decides nothing."""

UNMEASURED_SECONDS_PER_TOKEN = 1e-4
"""c(m) without any measurement, of the order of an 8B model on one large GPU."""

_Row = NDArray[np.float64]


class Evidence(NamedTuple):
    """What stands behind one probability.

    Args:
        known: the model was measured at all; otherwise the fleet's mean was given.
        outcomes: measured in the very cell.
        thin: too few of them, so that the probability leans on the model's mean.
    """

    known: bool
    outcomes: int
    thin: bool


class CapabilityModel:
    """Answers for P(correct) and speed; immutable but for its cache.

    Args:
        artifact: None before anything was measured.
    """

    def __init__(self, artifact: Capability | None = None) -> None:
        self._models = dict(artifact.models) if artifact else {}
        self._per_failure = artifact.retry.per_failure if artifact else 0.0
        self._pairs = (
            {(pair.model, pair.failed): pair.log_odds for pair in artifact.retry.pairs}
            if artifact
            else {}
        )
        cells = [cell for model in self._models.values() for cell in model.cells]
        self._languages = tuple(sorted({cell.language for cell in cells}))
        self._buckets = tuple(sorted({cell.bucket for cell in cells}))
        self._tasks = tuple(sorted({cell.task for cell in cells}))
        self._outcomes = {
            (name, cell.features): cell.outcomes
            for name, model in self._models.items()
            for cell in model.cells
        }
        speeds = {name: model.speed for name, model in self._models.items() if model.speed}
        self._seconds_per_token = {name: s.seconds_per_token for name, s in speeds.items()}
        self._fixed_s = {name: speed.fixed_s for name, speed in speeds.items()}
        self._rows: dict[tuple[tuple[str, ...], Features], _Row] = {}

    @property
    def tasks(self) -> frozenset[str]:
        """Tasks that the artifact knows."""
        return frozenset(self._tasks)

    @property
    def models(self) -> tuple[str, ...]:
        """The measured models."""
        return tuple(self._models)

    @property
    def chars_per_token(self) -> Mapping[str, Mapping[str, float]]:
        """By model, then language: where a `TokenEstimator` starts."""
        return {name: model.chars_per_token for name, model in self._models.items()}

    @property
    def measured_s_per_token(self) -> Mapping[str, float]:
        """c(m) of the models whose speed was measured."""
        return self._seconds_per_token

    def mean(self, model: str) -> float | None:
        """The model's share of correct outcomes over all cells; None if it was not measured."""
        known = self._models.get(model)
        return None if known is None else known.mean

    def outcomes(self, model: str) -> int:
        """Measured outcomes of the model."""
        known = self._models.get(model)
        return 0 if known is None else sum(cell.outcomes for cell in known.cells)

    def probabilities(
        self, models: Sequence[str], features: Features, tried: Sequence[str] = ()
    ) -> _Row:
        """P(correct) of each model, given that all of `tried` have failed on the request.

        Returns:
            Shape (len(models),), read-only where nothing was tried.
        """
        key = (tuple(models), features)
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= MAX_CACHED_ROWS:
                self._rows.clear()
            row = np.array([self._probability(model, features) for model in models])
            row.setflags(write=False)
            self._rows[key] = row
        return self.given_failures(row, models, tried) if tried else row

    def given_failures(self, row: _Row, models: Sequence[str], tried: Sequence[str]) -> _Row:
        """Moves unconditional probabilities to those given the failures of `tried`."""
        failed = dict.fromkeys(tried)
        shared = self._per_failure * len(failed)
        moved = []
        # Plain floats: for a handful of models they are three times as fast as arrays.
        for model, p in zip(models, row.tolist(), strict=True):
            shift = shared
            if self._pairs:
                shift += sum(self._pairs.get((model, other), 0.0) for other in failed)
            odds = p / (1 - p) * exp(min(max(shift, -50.0), 50.0))
            moved.append(min(max(odds / (1 + odds), MIN_PROBABILITY), MAX_PROBABILITY))
        return np.array(moved)

    def seconds_per_token(self, models: Sequence[str]) -> _Row:
        """c(m) of each model; one without a measurement takes the fleet's mean."""
        return _each(self._seconds_per_token, models, UNMEASURED_SECONDS_PER_TOKEN)

    def fixed_s(self, models: Sequence[str]) -> _Row:
        """What each model's answer takes besides its prompt: the decoding of a usual answer."""
        return _each(self._fixed_s, models, 0.0)

    def evidence(self, model: str, features: Features) -> Evidence:
        """What stands behind the model's probability on these features."""
        outcomes = self._outcomes.get((model, features), 0)
        return Evidence(model in self._models, outcomes, outcomes < MIN_CELL_OUTCOMES)

    def _probability(self, name: str, features: Features) -> float:
        model = self._models.get(name)
        if model is not None:
            return self._of_cells(name, model, features)
        if not self._models:
            return UNMEASURED_PROBABILITY
        each = [self._of_cells(known, model, features) for known, model in self._models.items()]
        return sum(each) / len(each)

    def _of_cells(self, name: str, model: ModelCapability, features: Features) -> float:
        """The mean over the measured cells that stand for these features: one, if measured."""
        cells = self._standing_for(features)
        if not cells:
            return min(max(model.mean, MIN_PROBABILITY), MAX_PROBABILITY)
        total = 0.0
        for cell in cells:
            log_odds = model.intercept + sum(model.terms.get(term, 0.0) for term in terms_of(cell))
            fitted = 1 / (1 + exp(-min(max(log_odds, -50.0), 50.0)))
            trust = min(self._outcomes.get((name, cell), 0) / MIN_CELL_OUTCOMES, 1.0)
            total += trust * fitted + (1 - trust) * model.mean
        return min(max(total / len(cells), MIN_PROBABILITY), MAX_PROBABILITY)

    def _standing_for(self, features: Features) -> list[Features]:
        if not self._buckets:
            return []
        at = min(bisect_left(self._buckets, features.bucket), len(self._buckets) - 1)
        known_language = features.language in self._languages
        known_task = features.task in self._tasks
        return [
            Features(language, self._buckets[at], task)
            for language in ((features.language,) if known_language else self._languages)
            for task in ((features.task,) if known_task else self._tasks)
        ]


def _each(measured: Mapping[str, float], models: Sequence[str], unmeasured: float) -> _Row:
    """The measured number of each model; the mean of all where a model has none."""
    mean = sum(measured.values()) / len(measured) if measured else unmeasured
    return np.array([measured.get(model, mean) for model in models])
