"""Judge an artifact on graded answers that it was not fitted to: `laar evaluate`.

Four ways to choose a model per question are compared, with every model at the same cost: the best
single model (by the artifact's evidence, so it is chosen before the questions are seen), laar with
the question alone, laar with the task given, and an oracle that knows the scores. Models that the
artifact does not know are ignored.
"""

from __future__ import annotations

from base64 import b64decode
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape

from laar.accuracy.artifact import (
    FINGERPRINT_BYTES,
    MAX_ARTIFACT_BYTES,
    Capability,
    FittedOn,
    parse_artifact,
)
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import GENERIC, Features, task_name, task_of
from laar.accuracy.fitting.outcomes import MeasuredOutcome, features_of_outcome
from laar.accuracy.fitting.records import (
    fingerprint,
    is_kept_back,
    place_of,
    question_of,
    read_records,
)
from laar.errors import SettingError
from laar_lab import trade
from laar_lab.report import Report, Table, Value, show

Floats = NDArray[np.float64]

_WAYS = ("best_single", "laar", "laar_task_told", "oracle")
_MAX_TASKS_SHOWN = 40
_BINS = 10
_RESAMPLES = 1000


def run_evaluate(
    artifact: Path, records: Sequence[Path], *, seed: int, json_file: Path | None
) -> None:
    """Judge an artifact, print the result and write the figures.

    Raises:
        SettingError: a file can't be read or written, or all questions were used in the fit.
    """
    console = Console()
    try:
        with artifact.open("rb") as file:
            fitted = parse_artifact(file.read(MAX_ARTIFACT_BYTES + 1), source=str(artifact))
    except OSError as fault:
        raise SettingError(f"{artifact}: can't be read: {fault.strerror}") from None
    read = read_records(records)
    figures = judge(fitted, questions_of(fitted, read.outcomes), seed=seed)
    used, _ = _fitted(fitted, read.outcomes)
    fresh = [o for o, was_used in zip(read.outcomes, used, strict=True) if not was_used]
    world = trade.world(fitted, fresh)
    curve = trade.curve(world, seed) if world is not None else None
    if curve is not None:
        figures["trade"] = [
            {"users": users, "choice": by, "right": right, "answers_per_s": rate}
            for (users, by), (right, rate) in curve.items()
        ]
    try:
        if json_file is not None:
            options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            json_file.write_bytes(orjson.dumps(figures, option=options))
    except OSError as fault:
        raise SettingError(f"{fault.filename}: {fault.strerror}") from None
    _show(console, figures)
    if curve is None:
        console.print("No curve of prices: it needs every model's speed and verdicts.")
    else:
        show(Report(tables=[trade.table(curve)]), console)
    for note in read.faults:
        console.print(f"note: {note}", markup=False)


def _show(console: Console, figures: Mapping[str, Any]) -> None:
    console.print(
        f"{figures['questions']} questions, {figures['answers']} answers; the artifact was fitted "
        f"to {figures['excluded_fitted']} others in these files, which are left out."
    )
    if figures["alike_fitted"]:
        console.print(
            f"{figures['alike_fitted']} answers look like answers used in the fit (same question, "
            "length, model and verdict). They are judged anyway, because the file has answers "
            "that the fit did not use, and lacks some that it used."
        )
    if figures["ignored_models"]:
        names = ", ".join(figures["ignored_models"][:10])
        console.print(f"Models that the artifact does not know: {names}.", markup=False)
    tasks = sorted(figures["tasks"].items(), key=lambda item: -item[1]["questions"])
    columns = ("best single", "laar", "task given", "oracle", "Brier", "calibration error")
    rows: list[tuple[Value, ...]] = [
        (
            escape(name),
            row["questions"],
            *(f"{row[way]:.1%}" for way in _WAYS),
            row["brier"],
            row["ece"],
        )
        for name, row in [("all", figures), *tasks[:_MAX_TASKS_SHOWN]]
    ]
    table = Table(
        title="Correct at the first attempt, with the same cost for every model",
        columns=("task", "questions", *columns),
        rows=rows,
        digits=3,
    )
    show(Report(tables=[table]), console)
    low, high = figures["laar_less_best_single"]
    console.print(
        f"laar minus the best single model ({figures['best_single_model']}): "
        f"{100 * (figures['laar'] - figures['best_single']):+.1f} points, 95 % interval "
        f"{100 * low:+.1f} to {100 * high:+.1f}.",
        markup=False,
    )


def judge(artifact: Capability, asked: Asked, *, seed: int = 0) -> dict[str, object]:
    """Return the figures as plain JSON types; shares are fractions of 1.

    Args:
        artifact: the artifact to judge.
        asked: questions that it was not fitted to.
        seed: seed of the bootstrap over the questions.
    """
    capability = CapabilityModel(artifact)
    base = np.array([capability.base_rates[model] for model in asked.models])
    counts = np.array([capability.measured_models[model].outcomes for model in asked.models])
    rates = np.where(2 * counts >= counts.max(), base, base - 1.0)  # few outcomes show no best
    return {
        "questions": len(asked.tasks),
        "answers": int(asked.answers.sum()),
        "excluded_fitted": asked.excluded,
        "alike_fitted": asked.alike,
        "ignored_models": list(asked.ignored),
        "best_single_model": asked.models[int(rates.argmax())],
        **_figures(asked, rates),
        "laar_less_best_single": _lead(asked, rates, np.random.default_rng(seed)),
        "tasks": {
            str(task): _figures(asked.of(asked.tasks == task), rates)
            | {"questions": int((asked.tasks == task).sum())}
            for task in np.unique(asked.tasks)
        },
    }


def _choices(asked: Asked, rates: Floats) -> dict[str, Floats]:
    """Return the score of each question's answer, for each way of choosing a model."""
    preferences = {
        "best_single": np.broadcast_to(rates, asked.scores.shape),
        "laar": asked.without_task,
        "laar_task_told": asked.with_task,
        "oracle": np.nan_to_num(asked.scores),
    }
    rows, unknown = np.arange(len(asked.tasks)), np.isnan(asked.scores)
    return {
        way: asked.scores[rows, np.argmax(np.where(unknown, -np.inf, preferred), axis=1)]
        for way, preferred in preferences.items()
    }


def _figures(asked: Asked, rates: Floats) -> dict[str, object]:
    shares = {
        name: float(np.average(scores, weights=asked.weights))
        for name, scores in _choices(asked, rates).items()
    }
    known = asked.answers > 0
    predicted, observed, weights = (
        each[known] for each in (asked.without_task, asked.scores, asked.answers)
    )
    # The Brier score over single answers, even where a score is the mean of several.
    errors = predicted**2 - 2 * predicted * observed + asked.squares[known]
    bins = np.minimum((predicted * _BINS).astype(np.intp), _BINS - 1)
    gaps = np.bincount(bins, weights=weights * (predicted - observed), minlength=_BINS)
    return {
        **shares,
        "brier": float(np.average(errors, weights=weights)),
        "ece": float(np.abs(gaps).sum() / weights.sum()),
    }


def _lead(asked: Asked, rates: Floats, rng: np.random.Generator) -> list[float]:
    """Return the 95 % bootstrap interval of laar's lead over the best single model."""
    choices, count = _choices(asked, rates), len(asked.tasks)
    lead = (choices["laar"] - choices["best_single"]) * asked.weights
    drawn = [rng.integers(0, count, count) for _ in range(_RESAMPLES)]
    means = [lead[rows].sum() / asked.weights[rows].sum() for rows in drawn]
    return [float(edge) for edge in np.quantile(means, (0.025, 0.975))]


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions as arrays; rows are questions, columns are models, unknown values are NaN.

    Args:
        models: model of each column.
        tasks: task of each question.
        scores: scores in 0..1.
        answers: number of answers behind each score, usually 1. Answers that are identified by
            their content are grouped by task, length and text.
        squares: mean of the squared scores.
        without_task: P(correct) from the question alone.
        with_task: P(correct) with the task given.
        excluded: number of questions left out because the artifact was fitted to them.
        alike: number of answers that look like one used in the fit (same question, length, model
            and verdict) but are judged anyway, because the file has answers that the fit did not
            use, and lacks some that it used.
        ignored: models that the artifact does not know.
    """

    models: tuple[str, ...]
    tasks: NDArray[np.str_]
    scores: Floats
    answers: Floats
    squares: Floats
    without_task: Floats
    with_task: Floats
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
        arrays = ("tasks", "scores", "answers", "squares", "without_task", "with_task")
        return replace(self, **{name: getattr(self, name)[rows] for name in arrays})


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
    tasks = []
    for row, answers in enumerate(fresh.values()):
        first = answers[0]
        cell = features_of_outcome(first)
        guess = capability.guess(_without_task(first, cell), first.text or "")
        without_task[row], _ = capability.guessed(models, guess)
        with_task[row] = (
            capability.probabilities(models, cell)
            if cell.task in capability.tasks and task_name(cell.task) == cell.task
            else (without_task[row])
        )
        tasks.append(cell.task)
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
        scores=scores,
        answers=answers_of,
        squares=squares,
        without_task=without_task,
        with_task=with_task,
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
    fit are considered used. In any other file, that would leave mostly answers with unusual
    verdicts.
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


def _by_content(outcome: MeasuredOutcome) -> str | None:
    """Return the id of an answer that a fit identifies only by its content, else None."""
    if outcome.query_id.startswith(("at:/", "row:/")):
        return outcome.query_id
    question = question_of(outcome.query_id)
    return place_of([outcome], question, 1) if question.startswith("q:") else None
