"""Fit a classifier that infers a request's task from its question, and estimate its reliability.

One logistic regression per task separates its questions from those of other tasks, so that a
request can resemble none.

Trust in the classifier is estimated from held-out data: each fit omits a group of tasks and a fold
of the other questions. The log odds of the omitted questions show how likely a question with such
log odds is to belong to the task rather than to an ungraded one.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import MAX_TEXT_TASKS, TextColumn, TextTerms
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.fitting.speed import rounded
from laar.accuracy.text import hashed

MIN_TASK_QUESTIONS = 20
"""Minimum number of questions to learn a task from. A smaller task only provides
counterexamples."""

_STRENGTH = 5.0  # C of the regressions, chosen on questions of nine tasks in five folds
_MAX_QUESTIONS = 30_000  # maximum number to learn from; larger sets are sampled
_MAX_GROUPS = 10  # groups of left-out tasks; each costs a fit
_MAX_LEFT_OUT = 200_000  # questions times tasks in a fit that leaves out tasks, which takes minutes
_FOLDS = 5  # one fold is left out with each group
_TRUST_STRENGTH = 1.0  # C of the regressions in `_trust`
_TRUST_WEIGHT = 100.0  # total weight of a task's questions, and of all unseen questions

_Floats = NDArray[np.float64]


class HashedQuestions(NamedTuple):
    """Hashed questions, as rows of a sparse matrix, and their tasks."""

    rows: Any
    tasks: NDArray[np.str_]

    def of(self, chosen: NDArray[np.bool_]) -> HashedQuestions:
        """Return the chosen questions."""
        return HashedQuestions(self.rows[chosen], self.tasks[chosen])


class _LeftOut(NamedTuple):
    """A fit's predictions for questions left out of it.

    Args:
        columns: the tasks in the fit.
        strangers: the tasks left out of it.
        tasks: tasks of the questions left out, in `columns` or in `strangers`.
        log_odds: by question and column.
    """

    columns: list[str]
    strangers: list[str]
    tasks: NDArray[np.str_]
    log_odds: _Floats


def fit_text(outcomes: Sequence[MeasuredOutcome]) -> TextTerms | None:
    """Fit the text terms; return None if fewer than two named tasks have enough questions."""
    questions = questions_of(outcomes)
    if questions is None:
        return None
    names, counts = np.unique(questions.tasks, return_counts=True)
    known = [str(name) for name in names[counts >= MIN_TASK_QUESTIONS]][:MAX_TEXT_TASKS]
    if len(known) < 2:
        return None
    left_out = _left_out(some_of(questions, known), known)
    return TextTerms(
        tasks=[
            packed(task, *_regression(questions, task), _trust(left_out, task)) for task in known
        ]
    )


def questions_of(outcomes: Sequence[MeasuredOutcome]) -> HashedQuestions | None:
    """Return the questions of named tasks; None if there are none with their text."""
    from scipy.sparse import csr_matrix, vstack  # type: ignore[import-untyped]  # ships no types

    by_id = {o.query_id: (o.text, o.task) for o in reversed(outcomes) if o.text and o.task_named}
    asked = list(by_id.values())[::-1]
    if not asked:
        return None
    if len(asked) > _MAX_QUESTIONS:
        asked = Random(0).sample(asked, _MAX_QUESTIONS)
    rows = [csr_matrix(hashed(text)) for text, _ in asked]
    return HashedQuestions(vstack(rows, "csr"), np.array([task for _, task in asked]))


def some_of(questions: HashedQuestions, known: Sequence[str]) -> HashedQuestions:
    """Sample each known task's questions, so that ten fits take only minutes; keep the others."""
    most = max(MIN_TASK_QUESTIONS, _MAX_LEFT_OUT // len(known) ** 2)
    chosen = np.ones(len(questions.tasks), bool)
    for task in known:
        (here,) = np.nonzero(questions.tasks == task)
        if len(here) > most:
            chosen[Random(0).sample(here.tolist(), len(here) - most)] = False
    return questions.of(chosen)


def _regression(questions: HashedQuestions, task: str) -> tuple[float, _Floats]:
    from sklearn.linear_model import LogisticRegression

    # The dual form is as accurate and takes a third of the time. It needs a seed for its order.
    regression = LogisticRegression(
        C=_STRENGTH, solver="liblinear", dual=True, tol=0.1, max_iter=50, random_state=0
    )
    regression.fit(questions.rows, questions.tasks == task)
    return float(regression.intercept_[0]), regression.coef_[0]


def packed(
    task: str, intercept: float, weights: _Floats, trust: tuple[float, float] = (0.0, 1.0)
) -> TextColumn:
    """Return a column in the artifact's form: one signed byte per weight."""
    scale = max(float(np.abs(weights).max()) / 127, 1e-9)
    return TextColumn(
        task=task,
        intercept=round(intercept, 4),
        scale=rounded(scale),
        weights=b64encode(np.round(weights / scale).astype(np.int8).tobytes()).decode(),
        trust_intercept=trust[0],
        trust_slope=trust[1],
    )


def _left_out(questions: HashedQuestions, known: Sequence[str]) -> list[_LeftOut]:
    """Fit without each group of tasks in turn; leave none out if too few would remain."""
    order = list(known)
    Random(0).shuffle(order)
    groups = [order[at::_MAX_GROUPS] for at in range(min(_MAX_GROUPS, len(order)))]
    if len(known) < 3:
        groups = [[]]
    fold = np.arange(len(questions.tasks)) % _FOLDS
    if any(len(set(fold[questions.tasks == task])) < 2 for task in known):  # tasks take turns
        fold = np.random.default_rng(0).permutation(fold)
    made = []
    for number, group in enumerate(groups):
        columns = [task for task in known if task not in group]
        kept_back = np.isin(questions.tasks, group) | (fold == number % _FOLDS)
        seen, asked = questions.of(~kept_back), questions.of(kept_back)
        regressions = [_regression(seen, task) for task in columns]
        log_odds = np.stack([asked.rows @ by + start for start, by in regressions], axis=1)
        made.append(_LeftOut(columns, group, asked.tasks, log_odds))
    return made


def _trust(left_out: Sequence[_LeftOut], task: str) -> tuple[float, float]:
    """Fit the trust in a task: log odds that a question belongs to it and not to an unseen task.

    The task's questions weigh as much as those of all unseen tasks together, and each unseen task
    weighs the same, however many questions it has.
    """
    from sklearn.linear_model import LogisticRegression

    own: list[_Floats] = []
    strange: list[_Floats] = []
    for fold in left_out:
        if task in fold.columns:
            column = fold.log_odds[:, fold.columns.index(task)]
            own.append(column[fold.tasks == task])
            strange += [column[fold.tasks == other] for other in fold.strangers]
    if not strange or not sum(map(len, own)):
        return 0.0, 1.0  # the log odds unchanged: there is no sample of unseen tasks
    x = np.concatenate(own)
    weights = [np.full(len(x), 1 / len(x))]
    weights += [np.full(len(column), 1 / len(column) / len(strange)) for column in strange]
    middle, spread = float(np.median(x)), max(float(np.std(x)), 0.3)
    regression = LogisticRegression(C=_TRUST_STRENGTH).fit(
        (np.concatenate([x, *strange])[:, None] - middle) / spread,
        np.arange(sum(map(len, (x, *strange)))) < len(x),
        sample_weight=_TRUST_WEIGHT * np.concatenate(weights),
    )
    slope = max(float(regression.coef_[0, 0]), 0.0) / spread
    return round(float(regression.intercept_[0]) - slope * middle, 4), round(slope, 4)
