"""Fits how a task is inferred from a request's words, and when it is not.

One logistic regression per task, this task against all others, so that a request can look like
none. How alike is alike enough is learned by leaving tasks out: with each group of tasks left out,
the rest is fitted and the requests left out are routed by it, as requests of unmeasured tasks will
be. The threshold is the smallest with which no task left out is served worse than by the best
single model, within `TOLERANCE` (two questions of a small task): below it a request gets the base
rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import MAX_TEXT_TASKS, TextTerms
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.text import Said, hashed, measured, packed

MIN_TASK_QUESTIONS = 20
"""Questions of a task from which on its words are learned; with fewer it counts among the
others."""

TOLERANCE = 0.003
"""Share of right answers that a task left out may lose against the best single model."""

_TOLERATED_QUESTIONS = 2.0  # so few decide nothing, however small the task

_STRENGTH = 10.0  # C of the regressions, chosen on the questions of nine tasks, five folds
_MAX_QUESTIONS = 30_000  # that words are learned from; a sample of more
_MAX_GROUPS = 10  # of tasks left out: each costs a fit
_MAX_LEFT_OUT = 200_000  # questions times tasks that a fit with tasks left out gets: minutes
_PRIOR_OUTCOMES = 10.0  # weight of the mean in a task's share of right answers
_THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""Half at the least: a request that is more likely of none of the tasks is of none."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Questions:
    """Questions with a text: hashed rows, tasks, and scores by model; NaN where none was given."""

    rows: Any  # scipy's sparse matrix
    tasks: NDArray[np.str_]
    scores: _Floats

    def of(self, chosen: NDArray[np.bool_]) -> _Questions:
        return _Questions(self.rows[chosen], self.tasks[chosen], self.scores[chosen])


def fit_text(outcomes: Sequence[MeasuredOutcome]) -> TextTerms | None:
    """The terms; None if fewer than two tasks have enough named questions."""
    questions = _questions(outcomes)
    if questions is None:
        return None
    names, counts = np.unique(questions.tasks, return_counts=True)
    known = [str(name) for name in names[counts >= MIN_TASK_QUESTIONS]][:MAX_TEXT_TASKS]
    if len(known) < 2:
        return None
    threshold, gains = _threshold(_some(questions, known), known)
    columns = [packed(task, *_regression(questions, task)) for task in known]
    return TextTerms(
        threshold=threshold,
        tasks=columns,
        gain_unseen=float(np.mean(gains)) if len(gains) else None,
        worst_unseen=float(np.min(gains)) if len(gains) else None,
    )


def _questions(outcomes: Sequence[MeasuredOutcome]) -> _Questions | None:
    from scipy.sparse import csr_matrix, vstack  # type: ignore[import-untyped]  # ships no types

    by_question: dict[str, list[MeasuredOutcome]] = {}
    for outcome in outcomes:
        if outcome.text and outcome.told:
            by_question.setdefault(outcome.query_id, []).append(outcome)
    asked = list(by_question.values())
    if not asked:
        return None
    if len(asked) > _MAX_QUESTIONS:
        asked = Random(0).sample(asked, _MAX_QUESTIONS)
    models = {name: at for at, name in enumerate(sorted({o.model for o in outcomes}))}
    scores = np.full((len(asked), len(models)), np.nan)
    for row, answers in enumerate(asked):
        for outcome in answers:
            scores[row, models[outcome.model]] = outcome.right
    rows = vstack([csr_matrix(hashed(Said(answers[0].text or ""))) for answers in asked], "csr")
    return _Questions(rows, np.array([answers[0].task for answers in asked]), scores)


def _some(questions: _Questions, known: Sequence[str]) -> _Questions:
    """As many of each task as the time of ten fits for each task allows; the others all."""
    most = max(MIN_TASK_QUESTIONS, _MAX_LEFT_OUT // len(known) ** 2)
    chosen = np.ones(len(questions.tasks), bool)
    for task in known:
        (here,) = np.nonzero(questions.tasks == task)
        if len(here) > most:
            chosen[Random(0).sample(here.tolist(), len(here) - most)] = False
    return questions.of(chosen)


def _regression(questions: _Questions, task: str) -> tuple[float, _Floats]:
    from sklearn.linear_model import LogisticRegression

    regression = LogisticRegression(C=_STRENGTH, solver="liblinear", tol=1e-2, max_iter=50)
    regression.fit(questions.rows, questions.tasks == task)
    return float(regression.intercept_[0]), regression.coef_[0]


def _threshold(questions: _Questions, known: Sequence[str]) -> tuple[float, _Floats]:
    """The threshold, and the gain of routing by it on each task left out."""
    order = list(known)
    Random(0).shuffle(order)
    groups = [order[at::_MAX_GROUPS] for at in range(min(_MAX_GROUPS, len(order)))]
    if len(known) < 3:
        return _THRESHOLDS[-1], np.zeros(0)
    gains: list[list[float]] = []  # by task left out, then threshold
    allowed: list[float] = []
    for group in groups:
        left = [task for task in known if task not in group]
        seen = questions.of(~np.isin(questions.tasks, group))
        out = questions.of(np.isin(questions.tasks, group))
        base, by_task = _shares(seen, left)
        likeness = np.stack([_likeness(seen, out, task) for task in left], axis=1)
        guessed = likeness / likeness.sum(axis=1, keepdims=True) @ by_task
        single = int(np.argmax(base))
        for task in group:
            here = out.tasks == task
            score, alike = out.scores[here], measured(likeness[here])
            picked = np.argmax(guessed[here], axis=1)
            gained = np.nan_to_num(score[np.arange(len(score)), picked] - score[:, single])
            gains.append([float(np.mean(gained * (alike >= at))) for at in _THRESHOLDS])
            allowed.append(max(TOLERANCE, _TOLERATED_QUESTIONS / len(score)))
    table = np.array(gains)
    worst = (table + np.array(allowed)[:, None]).min(axis=0)
    enough = np.flatnonzero(worst >= 0)
    chosen = int(enough[0]) if len(enough) else int(np.argmax(worst))
    return _THRESHOLDS[chosen], table[:, chosen]


def _likeness(seen: _Questions, out: _Questions, task: str) -> _Floats:
    intercept, weights = _regression(seen, task)
    likeness: _Floats = 1 / (1 + np.exp(-(out.rows @ weights + intercept)))
    return likeness


def _shares(questions: _Questions, tasks: Sequence[str]) -> tuple[_Floats, _Floats]:
    """Each model's share of right answers: over all questions, and by task, held back to that."""
    base = np.nan_to_num(np.nanmean(questions.scores, axis=0))
    by_task = []
    for task in tasks:
        scores = questions.scores[questions.tasks == task]
        count = (~np.isnan(scores)).sum(axis=0)
        by_task.append(
            (np.nansum(scores, axis=0) + _PRIOR_OUTCOMES * base) / (count + _PRIOR_OUTCOMES)
        )
    return base, np.stack(by_task)
