"""Q(m, x): the success probability of each model on a request, from a fitted artifact.

On the request path this is a table look-up: the log odds of a cell are summed once and the row of
all models is cached. On retries the row is conditioned on the failures, which are not independent:
a query that one model has failed is harder than its features suggest (the paper assumes
independence, LAAR section 5.1).

Unmeasured classes have fixed substitutes: a length bucket uses the next longer measured bucket, or
else the longest; an unmeasured language or task uses the mean over the measured ones, weighted by
outcomes; an unmeasured model uses the mean of the fleet, with an `evidence` of 0. If the task is
inferred from the question's text, the row is a mixture over the tasks that the request resembles.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import MIN_CELL_OUTCOMES, Capability, ModelCapability, terms_of
from laar.accuracy.assessment import (
    UNMEASURED_SECONDS_PER_TOKEN,
    SpeedPrior,
)
from laar.accuracy.cells import learned
from laar.accuracy.difficulty import given
from laar.accuracy.features import GENERIC, Features
from laar.accuracy.text import TaskTable, TextModel, task_table

MIN_PROBABILITY, MAX_PROBABILITY = 0.001, 0.999
"""Bounds on Q: costs are divided by Q, and no evidence can show that a model never fails."""

MAX_CACHED_ROWS = 4096
"""Maximum number of cached rows, one per model list and cell; clients may name any task."""

_MAX_CACHED_TABLES = 256  # one per model list, language and length
_MAX_LISTS = 16  # cached model lists: the fleet's, and one per virtual name for adapters
_MOSTLY = 0.5  # share above which a request counts as belonging to a task

UNMEASURED_PROBABILITY = 0.5
"""Q without an artifact: equal for all models, so it does not affect the choice."""

_LEAST_ERROR = 0.25
"""Minimum relative error assumed for a measured c(m): under load, or after an upgrade, an engine
behaves differently from when it was measured alone."""

_ANY = ""
"""Wildcard for all measured languages or tasks; a real name is never empty."""

_Row = NDArray[np.float64]


class Guess(NamedTuple):
    """A request's task, as inferred from its question.

    Args:
        features: the request's features, with ``generic`` replaced by the most likely task, if any.
        shares: share of each of the text model's tasks among all requests that look like this one;
            None if the text was not used.
    """

    features: Features
    shares: _Row | None


_FEW_OUTCOMES = 30.0
"""Weight of the mean of all models in a model's base rate, in outcomes."""


def _base_rates(models: Mapping[str, ModelCapability]) -> dict[str, float]:
    """Return each model's mean, shrunk toward the overall mean if it has cells."""
    counts = {name: model.outcomes for name, model in models.items()}
    total = max(1, sum(counts.values()))
    pooled = sum(models[name].mean * count for name, count in counts.items()) / total
    return {
        name: (models[name].mean * count + pooled * _FEW_OUTCOMES) / (count + _FEW_OUTCOMES)
        if count
        else models[name].mean
        for name, count in counts.items()
    }


class CapabilityModel:
    """Provides P(correct) and speed; immutable except for its cache.

    Args:
        artifact: None if nothing has been measured yet.
        digest: identifies the artifact in saved states.
    """

    def __init__(self, artifact: Capability | None = None, digest: str = "") -> None:
        self.digest = digest
        self.measured_models = dict(artifact.models) if artifact else {}
        """The artifact's entries for the measured models."""
        self.models = tuple(self.measured_models)
        self.chars_per_token = {name: m.chars_per_token for name, m in self.measured_models.items()}
        """Characters per token by model, then language."""
        self._difficulty = artifact.retry.difficulty if artifact else None
        measured_cells = {
            (name, cell.features): cell.outcomes
            for name, model in self.measured_models.items()
            for cell in model.cells
        }
        self._languages = frozenset(cell.language for _, cell in measured_cells)
        self._buckets = tuple(sorted({cell.bucket for _, cell in measured_cells}))
        self.tasks = tuple(sorted({cell.task for _, cell in measured_cells}))
        """The measured tasks."""
        self.base_rates = _base_rates(self.measured_models)
        """Each model's mean, shrunk toward the mean of all models if few outcomes were measured."""
        self._sums = _summed(self.measured_models, measured_cells, self.base_rates)
        self._learned: Counter[tuple[str, Features]] = Counter()
        for (name, features), outcomes in measured_cells.items():
            self._learned[name, learned(features)] += outcomes
        measured = {
            name: model.speed for name, model in self.measured_models.items() if model.speed
        }
        speeds = {name: speed for name, speed in measured.items() if speed.sure}
        self.unsure = tuple(sorted(measured.keys() - speeds.keys()))
        """Models whose c(m) in the artifact is ignored because it is too uncertain."""
        self._speeds = speeds
        self.measured_s_per_token = {name: s.seconds_per_token for name, s in speeds.items()}
        """c(m) of the models whose speed was measured."""
        self.seconds_per_token = _by_models(self.measured_s_per_token, UNMEASURED_SECONDS_PER_TOKEN)
        """Returns c(m) of each model in a tuple; the fleet's mean for an unmeasured model."""
        fixed_s = {name: speed.fixed_s for name, speed in speeds.items()}
        self.fixed_s = _by_models(fixed_s, 0.0)
        """Returns each model's time in seconds for a typical answer, excluding the prompt."""
        self._timed = any(fixed_s.values())  # a hand-written artifact may lack these times
        rows, tables = lru_cache(MAX_CACHED_ROWS), lru_cache(_MAX_CACHED_TABLES)
        self._row: Callable[[tuple[str, ...], Features], _Row] = rows(self._probabilities)
        self._table: Callable[[tuple[str, ...], str, int], TaskTable] = tables(self._task_table)
        self.evidence: Callable[[tuple[str, ...], Features], _Row] = rows(self._evidence)
        """Returns each model's number of outcomes in the cell, at its measured length."""
        self.text = TextModel(artifact.text) if artifact and artifact.text else None
        """Classifier of tasks by text; None if the artifact has no terms for it."""

    def guess(self, features: Features, question: str) -> Guess:
        """Infer a request's task from its question, unless it names a measured task."""
        if self.text is None or features.task in self.tasks:
            return Guess(features, None)
        shares = self.text.guess(question)
        if features.task == GENERIC and shares.max() > _MOSTLY:
            features = features._replace(task=self.text.tasks[int(shares.argmax())])
        return Guess(features, shares)

    def probabilities(self, models: Sequence[str], features: Features) -> _Row:
        """Return P(correct) of each model at the first attempt; shape (len(models),), read-only."""
        return self._row(tuple(models), features)

    def guessed(self, models: Sequence[str], guess: Guess) -> tuple[_Row, _Row]:
        """Return P(correct) of each model on a request of a guessed task, and what of it is sure.

        They are the same where the task is known.
        """
        (language, bucket, _), shares = guess
        if shares is None:
            row = self.probabilities(models, guess.features)
            return row, row
        row, sure = self._table(tuple(models), language, bucket).row(shares)
        return _bounded(row), _bounded(sure)

    def _task_table(self, models: tuple[str, ...], language: str, bucket: int) -> TaskTable:
        """Return P(correct) by task of the text model, then model, for this language and length."""
        assert self.text is not None
        cells = [Features(language, bucket, task) for task in self.text.tasks]
        based_on = map(self._standing_for, cells)
        return task_table(
            np.array([self._row(models, cell) for cell in cells]),
            np.array([[self._sums.get((m, at), (0.0, 0))[1] for m in models] for at in based_on]),
            int(np.argmax([self.base_rates.get(model, 0.0) for model in models])),
        )

    def given_failures(self, row: _Row, models: Sequence[str], tried: Sequence[str]) -> _Row:
        """Condition probabilities on the failures of `tried`, in which repeats count.

        Only those among `models` are evidence of the question's difficulty.
        """
        if self._difficulty:
            failures = np.array(list(map(tried.count, models)))
            if failures.any():
                row = given(row, failures, self._difficulty)
        return _bounded(row)

    def speed(self, model: str) -> SpeedPrior:
        """Return the speed of a model; the fleet's mean times if it is unmeasured."""
        found = self._speeds.get(model)
        fixed_s = self.fixed_s((model,)).item() if self._timed else None
        if found is None:
            return SpeedPrior(float(self.seconds_per_token((model,))[0]), answer_s=fixed_s)
        error = max(found.spread_s_per_token / found.seconds_per_token, _LEAST_ERROR)
        start_s = found.start_s
        answer_s = None if fixed_s is None else fixed_s - start_s
        return SpeedPrior(found.seconds_per_token, error, start_s, found.bend, answer_s)

    def _evidence(self, models: tuple[str, ...], features: Features) -> _Row:
        cell = self._at_measured_length(features)
        return np.array([self._sums.get((model, cell), (0.0, 0))[1] for model in models], float)

    def measured(self, model: str, features: Features) -> int:
        """Return the number of measured outcomes in the cell to which reports are added."""
        return self._learned[model, learned(self._at_measured_length(features))]

    def _probabilities(self, models: tuple[str, ...], features: Features) -> _Row:
        """Return P(correct) of each model; for unmeasured models, the mean of the measured ones."""
        cell, measured = self._standing_for(features), self.measured_models
        mean = UNMEASURED_PROBABILITY
        if measured and not measured.keys() >= set(models):
            mean = sum(self._of_cell(model, cell) for model in measured) / len(measured)
        row = np.array([self._of_cell(m, cell) if m in measured else mean for m in models])
        row.setflags(write=False)
        return row

    def _of_cell(self, model: str, cell: Features) -> float:
        total, outcomes = self._sums.get((model, cell), (0.0, 0))
        mean = total / outcomes if outcomes else self.base_rates[model]
        return min(max(mean, MIN_PROBABILITY), MAX_PROBABILITY)

    def _at_measured_length(self, features: Features) -> Features:
        """Return the features with their bucket replaced by a measured one."""
        if not self._buckets:
            return features
        at = min(bisect_left(self._buckets, features.bucket), len(self._buckets) - 1)
        return features._replace(bucket=self._buckets[at])

    def _standing_for(self, features: Features) -> Features:
        """Return the features with a measured bucket, and `_ANY` for other unmeasured values."""
        language, bucket, task = self._at_measured_length(features)
        return Features(
            language if language in self._languages else _ANY,
            bucket,
            task if task in self.tasks else _ANY,
        )


def _summed(
    models: Mapping[str, ModelCapability],
    outcomes: Mapping[tuple[str, Features], int],
    base_rates: Mapping[str, float],
) -> dict[tuple[str, Features], tuple[float, int]]:
    """Return sums of P(correct) * outcomes and of outcomes, by model and cell, including `_ANY`.

    They are precomputed because the request path can't wait for sums over hundreds of cells.
    """
    sums: dict[tuple[str, Features], tuple[float, int]] = {}
    terms = {cell: terms_of(cell) for _, cell in outcomes}
    for (name, cell), count in outcomes.items():
        model = models[name]
        log_odds = model.intercept + sum(model.terms.get(term, 0.0) for term in terms[cell])
        fitted = 1 / (1 + exp(-min(max(log_odds, -50.0), 50.0)))
        trust = min(count / MIN_CELL_OUTCOMES, 1.0)
        p = trust * fitted + (1 - trust) * base_rates[name]
        for language in (cell.language, _ANY):
            for task in (cell.task, _ANY):
                key = name, Features(language, cell.bucket, task)
                total, counted = sums.get(key, (0.0, 0))
                sums[key] = total + count * p, counted + count
    return sums


def _by_models(
    measured: Mapping[str, float], unmeasured: float
) -> Callable[[tuple[str, ...]], _Row]:
    """Return a function that gives unmeasured models the mean of the measured ones."""
    mean = sum(measured.values()) / len(measured) if measured else unmeasured
    return lru_cache(_MAX_LISTS)(
        lambda models: np.array([measured.get(model, mean) for model in models])
    )


def _bounded(row: _Row) -> _Row:
    return np.minimum(np.maximum(row, MIN_PROBABILITY), MAX_PROBABILITY)
