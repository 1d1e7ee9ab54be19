"""Judge an artifact on questions that it was not fitted to.

Four ways to choose a model per question are compared, with every model at the same cost: the best
single model (by the artifact's evidence, so it is chosen before the questions are seen), laar with
the question alone, laar with the task given, and an oracle that knows the scores. The figures
include calibration, and the gain from a second and a third attempt.

Intervals are 95 % bootstrap intervals over the questions. Models that the artifact does not know
are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import Capability
from laar.accuracy.capability import CapabilityModel
from laar_lab.judging.questions import Asked, Floats

_MOSTLY = 0.9
"""Share of the questions that a model must have answered to be the best one in hindsight."""

_NO_ERROR = 1e-6  # Brier score too small to compute a relative gain from

_BINS = 10
_RESAMPLES = 1000


def judge(artifact: Capability, asked: Asked, *, seed: int = 0) -> dict[str, object]:
    """Return the figures as plain JSON types; shares are fractions of 1.

    Args:
        artifact: the artifact to judge.
        asked: questions that it was not fitted to.
        seed: seed of the resampling.
    """
    capability = CapabilityModel(artifact)
    rates = _base_rates(capability, asked.models)
    figures: dict[str, object] = {
        "questions": len(asked.tasks),
        "answers": int(asked.answers.sum()),
        "excluded_fitted": asked.excluded,
        "alike_fitted": asked.alike,
        "ignored_models": list(asked.ignored),
        "best_single_model": asked.models[int(rates.argmax())],
        **_figures(asked, rates),
        **_intervals(asked, rates, np.random.default_rng(seed)),
        "unlike": float(np.average(asked.unlike, weights=asked.weights)),
        "reliability": _reliability(asked),
        "attempts": _attempts(capability, asked, rates, np.random.default_rng(seed)),
        "tasks": {
            str(task): _figures(asked.of(asked.tasks == task), rates)
            | {"questions": int((asked.tasks == task).sum())}
            for task in np.unique(asked.tasks)
        },
    }
    return figures


def _base_rates(capability: CapabilityModel, models: Sequence[str]) -> Floats:
    """Return each model's base rate, less 1 if another model has more than twice its outcomes."""
    rates = np.array([capability.base_rates[model] for model in models])
    counts = np.array([capability.measured_models[model].outcomes for model in models])
    return np.where(2 * counts >= counts.max(), rates, rates - 1.0)


def _picked(preference: Floats, asked: Asked) -> NDArray[np.intp]:
    """Return the preferred model for each question, among those whose answer is known."""
    picked: NDArray[np.intp] = np.argmax(
        np.where(np.isnan(asked.scores), -np.inf, preference), axis=1
    )
    return picked


def _single(asked: Asked, rates: Floats) -> NDArray[np.intp]:
    """Return the model with the highest base rate, among those whose answer is known."""
    return _picked(np.broadcast_to(rates, asked.scores.shape), asked)


def _means(asked: Asked) -> Floats:
    right = np.nan_to_num(asked.scores) * asked.answers
    means: Floats = right.sum(axis=0) / np.maximum(asked.answers.sum(axis=0), 1)
    return means


def _choices(asked: Asked, rates: Floats) -> dict[str, Floats]:
    """Return the score of each question's answer, for each way of choosing a model."""
    rows = np.arange(len(asked.tasks))
    return {
        "best_single": asked.scores[rows, _single(asked, rates)],
        "laar": asked.scores[rows, _picked(asked.without_task, asked)],
        "laar_task_told": asked.scores[rows, _picked(asked.with_task, asked)],
        "oracle": asked.scores[rows, _picked(np.nan_to_num(asked.scores), asked)],
    }


def _figures(asked: Asked, rates: Floats) -> dict[str, object]:
    shares = {
        name: float(np.average(scores, weights=asked.weights))
        for name, scores in _choices(asked, rates).items()
    }
    most = asked.weights @ (asked.answers > 0) >= _MOSTLY * asked.weights.sum()
    best_here = float(np.max(_means(asked)[most] if most.any() else _means(asked)))
    predicted, observed, weights = _answers(asked)
    return {
        **shares,
        "regret": shares["oracle"] - shares["laar"],
        "best_single_in_hindsight": best_here,
        "brier": _brier(asked),
        "ece": calibration_error(predicted, observed, weights),
    }


def _brier(asked: Asked) -> float:
    """Return the Brier score over single answers, even where a score is the mean of several."""
    known = asked.answers > 0
    p, mean = asked.without_task[known], asked.scores[known]
    errors = p**2 - 2 * p * mean + asked.squares[known]
    return float(np.average(errors, weights=asked.answers[known]))


def _answers(asked: Asked) -> tuple[Floats, Floats, Floats]:
    """Return predictions, observations and numbers of answers, per question and model."""
    known = asked.answers > 0
    return asked.without_task[known], asked.scores[known], asked.answers[known]


def _bins(predicted: Floats) -> NDArray[np.intp]:
    return np.minimum((predicted * _BINS).astype(np.intp), _BINS - 1)


def calibration_error(predicted: Floats, observed: Floats, weights: Floats) -> float:
    """Return the expected calibration error, over bins of equal width."""
    gaps = np.bincount(_bins(predicted), weights=weights * (predicted - observed), minlength=_BINS)
    return float(np.abs(gaps).sum() / weights.sum())


def _reliability(asked: Asked) -> list[dict[str, float]]:
    predicted, observed, weights = _answers(asked)
    bins = _bins(predicted)
    found = []
    for number in range(_BINS):
        here = bins == number
        if here.any():
            share = {"weights": weights[here]}
            found.append(
                {
                    "predicted": float(np.average(predicted[here], **share)),
                    "observed": float(np.average(observed[here], **share)),
                    "answers": float(weights[here].sum()),
                }
            )
    return found


def _resampled(values: Mapping[str, Floats], asked: Asked, rng: np.random.Generator) -> Floats:
    """Return the mean of each value over resampled questions; shape (values, resamples)."""
    count = len(asked.tasks)
    stacked = np.stack(list(values.values())) * asked.weights
    found = np.empty((len(stacked), _RESAMPLES))
    for at in range(_RESAMPLES):
        drawn = np.bincount(rng.integers(0, count, count), minlength=count)
        found[:, at] = stacked @ drawn / (asked.weights @ drawn)
    return found


def _interval(samples: Floats) -> list[float]:
    return [float(edge) for edge in np.quantile(samples, (0.025, 0.975))]


def _intervals(asked: Asked, rates: Floats, rng: np.random.Generator) -> dict[str, object]:
    choices = _choices(asked, rates)
    samples = dict(zip(choices, _resampled(choices, asked, rng), strict=True))
    return {
        "intervals": {
            **{name: _interval(each) for name, each in samples.items()},
            "laar_less_best_single": _interval(samples["laar"] - samples["best_single"]),
            "regret": _interval(samples["oracle"] - samples["laar"]),
        }
    }


def _attempts(
    capability: CapabilityModel, asked: Asked, rates: Floats, rng: np.random.Generator
) -> dict[str, object]:
    """Return the shares correct within 1 to 3 attempts, and how well the second is predicted.

    Only questions answered exactly once by at least as many models as attempts are counted.
    """
    known = np.where((asked.answers <= 1).all(axis=1), (asked.answers == 1).sum(axis=1), 0)
    most = min(3, int(known.max()))
    if most < 2:
        return {}
    whole = asked.of(known >= most)
    count = len(whole.tasks)
    right = {name: np.zeros((most, count)) for name in ("laar", "marginal", "best_singles")}
    errors: list[tuple[float, float]] = []
    for row in range(count):
        here = np.flatnonzero(whole.answers[row])
        models = [whole.models[at] for at in here]
        scores, marginal = whole.scores[row, here], whole.without_task[row, here]
        orders = {
            "marginal": np.argsort(-marginal, kind="stable"),
            "best_singles": np.argsort(-rates[here], kind="stable"),
            "laar": np.array(_order(capability, models, marginal, most)),
        }
        for name, order in orders.items():
            right[name][:, row] = np.maximum.accumulate(scores[order[:most]])
        first = int(orders["laar"][0])
        if scores[first] < 0.5:
            then = int(orders["laar"][1])
            given = capability.given_failures(marginal, models, [models[first]])
            errors.append(((marginal[then] - scores[then]) ** 2, (given[then] - scores[then]) ** 2))
    found: dict[str, object] = {
        name: [float(np.average(each, weights=whole.weights)) for each in within]
        for name, within in right.items()
    }
    found["questions"], found["models"] = count, most
    gained = {str(at): right["laar"][at] - right["laar"][at - 1] for at in range(1, most)}
    found["value_of_attempt"] = {
        str(at + 1): {"value": float(np.average(gained[str(at)])), "interval": _interval(samples)}
        for at, samples in zip(range(1, most), _resampled(gained, whole, rng), strict=True)
    }
    if errors:
        plain, given_failure = np.array(errors).T.mean(axis=1)
        better = float(1 - given_failure / plain) if plain > _NO_ERROR else 0.0
        found["second_after_failure"] = {
            "attempts": len(errors),
            "brier_marginal": float(plain),
            "brier": float(given_failure),
            "better_by": better,
        }
    return found


def _order(
    capability: CapabilityModel, models: Sequence[str], marginal: Floats, most: int
) -> list[int]:
    """Return the models in the order in which laar tries them if every earlier one fails."""
    order: list[int] = []
    for _ in range(most):
        row = capability.given_failures(marginal, models, [models[at] for at in order])
        row = np.array(row)
        row[order] = -1.0
        order.append(int(np.argmax(row)))
    return order
