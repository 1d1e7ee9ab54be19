"""Fit a classifier that infers a request's task from its words, and estimate its reliability.

One logistic regression per task separates its questions from those of other tasks and from texts
that mix the words of two tasks, so that a request can resemble none. From the mixed texts it
learns, for example, that a physics question in mathematical notation is neither.

Trust in the classifier is estimated from held-out data: each fit omits a group of tasks and a fold
of the other questions. The log odds of the omitted questions show how likely a question with such
log odds is to belong to the task rather than to an ungraded one. The same fits show what routing
would gain on unseen tasks, with trust estimated without them.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import MAX_TEXT_TASKS, TextColumn, TextTerms
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.fitting.speed import rounded
from laar.accuracy.text import Said, TaskTable, hashed, shares_of, task_table

MIN_TASK_QUESTIONS = 20
"""Minimum number of questions to learn a task's words from. A smaller task only provides
counterexamples."""

_STRENGTH = 10.0  # C of the regressions, chosen on questions of nine tasks in five folds
_MAX_QUESTIONS = 30_000  # maximum number to learn words from; larger sets are sampled
_MAX_GROUPS = 10  # groups of left-out tasks; each costs a fit
_MAX_LEFT_OUT = 200_000  # questions times tasks in a fit that leaves out tasks, which takes minutes
_PRIOR_OUTCOMES = 10.0  # weight of the mean in a task's share of correct answers
_FOLDS = 5  # one fold is left out with each group
_MIXED = 0.8  # mixed texts per question
_TRUST_STRENGTH = 1.0  # C of the regressions in `_trust`
_TRUST_WEIGHT = 100.0  # total weight of a task's questions, and of all unseen questions

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Questions:
    """Questions with their text: hashed rows, tasks, and scores by model (NaN where not given).

    A mixed text has two tasks; for an ordinary question the two are the same.
    """

    rows: Any  # scipy's sparse matrix
    tasks: NDArray[np.str_]
    scores: _Floats

    def of(self, chosen: NDArray[np.bool_]) -> _Questions:
        return _Questions(self.rows[chosen], self.tasks[chosen], self.scores[chosen])

    def in_task(self, task: str) -> NDArray[np.bool_]:
        """Return which questions belong to the task."""
        found: NDArray[np.bool_] = (self.tasks == task).all(axis=1)
        return found

    def unmixed(self) -> NDArray[np.bool_]:
        """Return which rows are questions rather than mixed texts."""
        unmixed: NDArray[np.bool_] = self.tasks[:, 0] == self.tasks[:, 1]
        return unmixed


class _LeftOut(NamedTuple):
    """A fit's predictions for questions left out of it.

    Args:
        columns: the tasks in the fit.
        strangers: the tasks left out of it.
        asked: the questions left out, from tasks in the fit and from `strangers`.
        log_odds: by question and column.
        table: the models' shares of correct answers in the fit's data.
        single: the best single model.
    """

    columns: list[str]
    strangers: list[str]
    asked: _Questions
    log_odds: _Floats
    table: TaskTable
    single: int


def fit_text(outcomes: Sequence[MeasuredOutcome]) -> TextTerms | None:
    """Fit the text terms; return None if fewer than two named tasks have enough questions."""
    questions = _questions(outcomes)
    if questions is None:
        return None
    names, counts = np.unique(questions.tasks[questions.unmixed()], return_counts=True)
    known = [str(name) for name in names[counts >= MIN_TASK_QUESTIONS]][:MAX_TEXT_TASKS]
    if len(known) < 2:
        return None
    left_out = _left_out(_some(questions, known), known)
    gains = _gains(left_out)
    columns = [
        packed(task, *_regression(questions, task), _trust(left_out, task)) for task in known
    ]
    return TextTerms(
        tasks=columns,
        gain_unseen=float(np.mean(gains)) if gains else None,
        worst_unseen=float(np.min(gains)) if gains else None,
    )


def _questions(outcomes: Sequence[MeasuredOutcome]) -> _Questions | None:
    from scipy.sparse import csr_matrix, vstack  # type: ignore[import-untyped]  # ships no types

    by_question: dict[str, list[MeasuredOutcome]] = {}
    for outcome in outcomes:
        if outcome.text and outcome.task_named:
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
    tasks = [answers[0].task for answers in asked]
    said = [answers[0].text or "" for answers in asked]
    mixed = _mixed(said, tasks)
    rows = [csr_matrix(hashed(Said(text))) for text in (*said, *(text for text, _ in mixed))]
    return _Questions(
        vstack(rows, "csr"),
        np.array([*zip(tasks, tasks, strict=True), *(both for _, both in mixed)]),
        np.concatenate([scores, np.full((len(mixed), len(models)), np.nan)]),
    )


def _mixed(said: Sequence[str], tasks: Sequence[str]) -> list[tuple[str, tuple[str, str]]]:
    """Return texts that mix the words of two questions of different tasks, with the two tasks.

    In every other text the letters of the second question's words are shuffled, because an unseen
    task has words that no graded question has.
    """
    rng = Random(0)
    mixed = []
    for number in range(int(_MIXED * len(said))):
        first, second = rng.randrange(len(said)), rng.randrange(len(said))
        if tasks[first] == tasks[second]:
            continue
        others = said[second].split()
        if number % 2:
            others = ["".join(rng.sample(word, len(word))) for word in others]
        words = zip_longest(said[first].split(), others, fillvalue="")
        text = " ".join(rng.choice(pair) for pair in words)
        mixed.append((text, (tasks[first], tasks[second])))
    return mixed


def _some(questions: _Questions, known: Sequence[str]) -> _Questions:
    """Sample each known task's questions, so that ten fits take only minutes; keep the others."""
    most = max(MIN_TASK_QUESTIONS, _MAX_LEFT_OUT // len(known) ** 2)
    chosen = np.ones(len(questions.tasks), bool)
    for task in known:
        (here,) = np.nonzero(questions.in_task(task))
        if len(here) > most:
            chosen[Random(0).sample(here.tolist(), len(here) - most)] = False
    (mixed,) = np.nonzero(~questions.unmixed())
    chosen[mixed[int(_MIXED * np.count_nonzero(chosen & questions.unmixed())) :]] = False
    return questions.of(chosen)


def _regression(questions: _Questions, task: str) -> tuple[float, _Floats]:
    from sklearn.linear_model import LogisticRegression

    # The dual form is as accurate and takes a third of the time. It needs a seed for its order.
    regression = LogisticRegression(
        C=_STRENGTH, solver="liblinear", dual=True, tol=0.1, max_iter=50, random_state=0
    )
    regression.fit(questions.rows, questions.in_task(task))
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


def _left_out(questions: _Questions, known: Sequence[str]) -> list[_LeftOut]:
    """Fit without each group of tasks in turn; leave none out if too few would remain."""
    order = list(known)
    Random(0).shuffle(order)
    groups = [order[at::_MAX_GROUPS] for at in range(min(_MAX_GROUPS, len(order)))]
    if len(known) < 3:
        groups = [[]]
    fold = np.arange(len(questions.tasks)) % _FOLDS
    if any(len(set(fold[questions.in_task(task)])) < 2 for task in known):  # tasks take turns
        fold = np.random.default_rng(0).permutation(fold)
    made = []
    for number, group in enumerate(groups):
        columns = [task for task in known if task not in group]
        strange = np.isin(questions.tasks, group).any(axis=1)
        kept_back = strange | (fold == number % _FOLDS)
        seen, asked = questions.of(~kept_back), questions.of(kept_back & questions.unmixed())
        regressions = [_regression(seen, task) for task in columns]
        log_odds = np.stack([asked.rows @ by + start for start, by in regressions], axis=1)
        made.append(_LeftOut(columns, group, asked, log_odds, *_shares(seen, columns)))
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
            own.append(column[fold.asked.in_task(task)])
            strange += [column[fold.asked.in_task(other)] for other in fold.strangers]
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


def _gains(left_out: Sequence[_LeftOut]) -> list[float]:
    """Return the gain over the best single model on each left-out task."""
    gains = []
    for fold in left_out:
        others = [other for other in left_out if other is not fold]
        if not fold.strangers or not others:
            continue
        trust = np.array([_trust(others, task) for task in fold.columns]).T
        row = fold.table.row(shares_of(fold.log_odds, *trust))
        for task in fold.strangers:
            here = fold.asked.in_task(task)
            scores, picked = fold.asked.scores[here], row[here].argmax(axis=1)
            gained = scores[np.arange(len(scores)), picked] - scores[:, fold.single]
            gains.append(float(np.mean(np.nan_to_num(gained))))
    return gains


def _shares(questions: _Questions, tasks: Sequence[str]) -> tuple[TaskTable, int]:
    """Return the shares of correct answers by task and overall, and the best single model."""
    chosen = np.stack([questions.unmixed(), *map(questions.in_task, tasks)]).astype(float)
    counts = chosen @ ~np.isnan(questions.scores)
    right = chosen @ np.nan_to_num(questions.scores)
    base = np.maximum(right[0], 1e-9) / np.maximum(counts[0], 1)
    by_task = (right[1:] + _PRIOR_OUTCOMES * base) / (counts[1:] + _PRIOR_OUTCOMES)
    single = int(np.argmax(base))
    return task_table(by_task, counts[1:], base, single), single
