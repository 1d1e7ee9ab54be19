"""The questions on which an artifact is judged, as arrays, with the artifact's estimates."""

from __future__ import annotations

import re
from base64 import b64decode
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import FINGERPRINT_BYTES, Capability, FittedOn
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import GENERIC, Features, task_name, task_of
from laar.accuracy.fitting.outcomes import MeasuredOutcome, features_of_outcome
from laar.accuracy.fitting.records import fingerprint, is_kept_back, place_of, question_of
from laar.accuracy.text import Said
from laar.errors import SettingError

_BILLIONS = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions as arrays; rows are questions, columns are models, unknown values are NaN.

    Args:
        models: model of each column.
        tasks: task of each question.
        buckets: length bucket of each question, in tokens.
        scores: scores in 0..1.
        answers: number of answers behind each score, usually 1. Answers that are identified by
            their content are grouped by task, length and text.
        squares: mean of the squared scores.
        without_task: P(correct) from the question alone.
        with_task: P(correct) with the task given.
        unlike: whether the question is unlike anything the artifact was fitted to.
        excluded: number of questions left out because the artifact was fitted to them.
        alike: number of answers that look like one used in the fit (same question, length, model
            and verdict) but are judged anyway, because the file has answers that the fit did not
            use, and lacks some that it used.
        ignored: models that the artifact does not know.
    """

    models: tuple[str, ...]
    tasks: NDArray[np.str_]
    buckets: NDArray[np.int64]
    scores: Floats
    answers: Floats
    squares: Floats
    without_task: Floats
    with_task: Floats
    unlike: NDArray[np.bool_]
    excluded: int
    ignored: tuple[str, ...]
    alike: int = 0

    @property
    def weights(self) -> Floats:
        """Weight of each question: the largest number of answers behind one of its scores."""
        weights: Floats = self.answers.max(axis=1)
        return weights

    def of(self, rows: NDArray[np.bool_]) -> Asked:
        """Return the selected questions."""
        return Asked(
            self.models,
            self.tasks[rows],
            self.buckets[rows],
            self.scores[rows],
            self.answers[rows],
            self.squares[rows],
            self.without_task[rows],
            self.with_task[rows],
            self.unlike[rows],
            self.excluded,
            self.ignored,
            self.alike,
        )


def questions_of(artifact: Capability, outcomes: Sequence[MeasuredOutcome]) -> Asked:
    """Return the questions that the artifact was not fitted to, with its estimates for them.

    Raises:
        SettingError: there are no such questions, or no model that the artifact knows answered any.
    """
    capability = CapabilityModel(artifact)
    fresh: dict[str, list[MeasuredOutcome]] = defaultdict(list)
    excluded: set[str] = set()
    ignored: set[str] = set()
    fitted, alike = _fitted(artifact, outcomes)
    for outcome, is_fitted in zip(outcomes, fitted, strict=True):
        if is_fitted:
            excluded.add(outcome.query_id)
        elif outcome.model not in capability.models:
            ignored.add(outcome.model)
        else:
            fresh[_question_of(outcome)].append(outcome)
    if not fresh:
        raise SettingError(
            f"no questions to judge: the artifact was fitted to {len(excluded)} of them and "
            f"{len(ignored)} models are not in it; fit with --hold-out, or give other records"
        )
    models = tuple(sorted({o.model for answers in fresh.values() for o in answers}))
    column = {model: at for at, model in enumerate(models)}
    count = len(fresh)
    sums, answers_of = np.zeros((count, len(models))), np.zeros((count, len(models)))
    squares = np.zeros_like(sums)
    without_task, with_task = np.empty_like(sums), np.empty_like(sums)
    unlike = np.zeros(count, bool)
    tasks, buckets = [], []
    for row, answers in enumerate(fresh.values()):
        first = answers[0]
        cell = features_of_outcome(first)
        guess = capability.guess(_without_task(first, cell), Said(first.text or ""))
        without_task[row] = capability.probabilities(models, guess.features, shares=guess.shares)
        with_task[row] = (
            capability.probabilities(models, cell)
            if cell.task in capability.tasks and task_name(cell.task) == cell.task
            else (without_task[row])
        )
        unlike[row] = guess.unlike
        tasks.append(cell.task)
        buckets.append(cell.bucket)
        for outcome in answers:
            at = row, column[outcome.model]
            sums[at] += outcome.right
            squares[at] += outcome.right**2
            answers_of[at] += 1
    with np.errstate(invalid="ignore"):
        scores, squares = sums / answers_of, squares / answers_of
    return Asked(
        models=models,
        tasks=np.array(tasks),
        buckets=np.array(buckets),
        scores=scores,
        answers=answers_of,
        squares=squares,
        without_task=without_task,
        with_task=with_task,
        unlike=unlike,
        excluded=len(excluded),
        ignored=tuple(sorted(ignored)),
        alike=alike,
    )


def fingerprints(fitted_on: FittedOn) -> frozenset[bytes]:
    """Return the fingerprints of the questions that a fit used."""
    data = b64decode(fitted_on.questions)
    return frozenset(
        data[at : at + FINGERPRINT_BYTES] for at in range(0, len(data), FINGERPRINT_BYTES)
    )


def _fitted(artifact: Capability, outcomes: Sequence[MeasuredOutcome]) -> tuple[list[bool], int]:
    """Return which outcomes the fit used, and how many others look like one that it used.

    Some answers are identified only by their content, so different answers may look the same. If
    the file has all answers of the fit, or has no others, answers that look like one used in the
    fit are considered used. In any other file, leaving them out would keep mostly answers with
    unusual verdicts.
    """
    if artifact.fitted_on is None:
        return [False] * len(outcomes), 0
    seen, share = fingerprints(artifact.fitted_on), artifact.fitted_on.held_out
    here = [fingerprint(outcome.query_id) for outcome in outcomes]
    contents = [_by_content(outcome) for outcome in outcomes]
    places = [None if content is None else fingerprint(content) for content in contents]
    has_others = any(
        content == outcome.query_id and place not in seen and not is_kept_back(content, share)
        for outcome, content, place in zip(outcomes, contents, places, strict=True)
    )
    by_question = [mark in seen and mark != place for mark, place in zip(here, places, strict=True)]
    by_place = [place in seen for place in places]
    if has_others and not seen <= {*here, *places}:
        return by_question, sum(by_place)
    return [a or b for a, b in zip(by_question, by_place, strict=True)], 0


def _question_of(outcome: MeasuredOutcome) -> str:
    """Return the key that groups answers by question, even if each answer has its own id."""
    if outcome.query_id.startswith("at:"):
        return f"{outcome.task} {outcome.prompt_tokens} {outcome.text}"
    return outcome.query_id


def _without_task(outcome: MeasuredOutcome, cell: Features) -> Features:
    """Return the features with the task that a router would detect without a header."""
    return cell._replace(task=task_of(outcome.text) if outcome.text else GENERIC)


def billions_of(model: str) -> float | None:
    """Return the number of parameters in a model's name, in billions; None if there is none."""
    size = _BILLIONS.search(model)
    return None if size is None else float(size[1])


def _by_content(outcome: MeasuredOutcome) -> str | None:
    """Return the id of an answer that a fit identifies only by its content, else None."""
    if outcome.query_id.startswith(("at:/", "row:/")):
        return outcome.query_id
    question = question_of(outcome.query_id)
    return place_of([outcome], question, 1) if question.startswith("q:") else None
