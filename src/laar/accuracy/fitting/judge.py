"""Judges an artifact on questions that it was not fitted to.

Four ways to choose a model for each question are compared, at equal cost: the best single model (by
the artifact's own evidence: it is chosen before the questions are seen), laar with the question
alone, laar with the task given, and an oracle that knows the scores. Beside these: whether the
probabilities are right, overall and by length; the gain of a second and a third attempt; and, where
seconds or dollars are known, the cost at the same accuracy and the accuracy at the same cost.

Intervals are 95 %, by resampling questions. Models that the artifact does not know are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import Capability
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.fitting.questions import Asked, Floats

__all__ = ["MIN_BUCKET_ANSWERS", "judge"]

MIN_BUCKET_ANSWERS = 100
"""Answers of one length from which its calibration error is reported."""

_BINS = 10
_RESAMPLES = 1000
_PRICES = np.concatenate([[0.0], np.geomspace(1e-4, 10, 60)])  # points of accuracy for a usual cost


def judge(artifact: Capability, asked: Asked, *, seed: int = 0) -> dict[str, object]:
    """The figures, as plain JSON types; shares of 1.

    Args:
        artifact: the artifact to judge.
        asked: questions it was not fitted to.
        seed: seed of the resampling.
    """
    single = _best_single(artifact, asked)
    figures: dict[str, object] = {
        "questions": len(asked.tasks),
        "answers": int(asked.answers.sum()),
        "excluded_fitted": asked.excluded,
        "ignored_models": list(asked.ignored),
        "best_single_model": asked.models[single],
        **_figures(asked, single),
        **_intervals(asked, single, np.random.default_rng(seed)),
        "unlike": float(np.average(asked.unlike, weights=asked.weights)),
        "reliability": _reliability(asked),
        "lengths": _lengths(asked),
        "attempts": _attempts(artifact, asked, single, np.random.default_rng(seed)),
        "costs": _frontiers(asked, single, np.random.default_rng(seed)),
        "tasks": {
            str(task): _figures(asked.of(asked.tasks == task), single)
            | {"questions": int((asked.tasks == task).sum())}
            for task in np.unique(asked.tasks)
        },
    }
    return figures


def _best_single(artifact: Capability, asked: Asked) -> int:
    """The model with the most right answers where it was fitted; the first that was asked here."""
    means = [artifact.models[model].mean for model in asked.models]
    return int(np.argmax(means))


def _picked(preference: Floats, asked: Asked) -> NDArray[np.intp]:
    """The preferred model of each question, of those whose answer is known."""
    picked: NDArray[np.intp] = np.argmax(
        np.where(np.isnan(asked.scores), -np.inf, preference), axis=1
    )
    return picked


def _single(asked: Asked, single: int) -> NDArray[np.intp]:
    """The single model; the one that is best here of the others where its answer is not known."""
    return _picked(
        np.nan_to_num(_means(asked)) + 2.0 * (np.arange(len(asked.models)) == single), asked
    )


def _means(asked: Asked) -> Floats:
    right = np.nan_to_num(asked.scores) * asked.answers
    means: Floats = right.sum(axis=0) / np.maximum(asked.answers.sum(axis=0), 1)
    return means


def _choices(asked: Asked, single: int) -> dict[str, Floats]:
    """The score of each question's answer, by the way of choosing."""
    rows = np.arange(len(asked.tasks))
    return {
        "best_single": asked.scores[rows, _single(asked, single)],
        "laar": asked.scores[rows, _picked(asked.untold, asked)],
        "laar_task_told": asked.scores[rows, _picked(asked.told, asked)],
        "oracle": asked.scores[rows, _picked(np.nan_to_num(asked.scores), asked)],
    }


def _figures(asked: Asked, single: int) -> dict[str, object]:
    shares = {
        name: float(np.average(scores, weights=asked.weights))
        for name, scores in _choices(asked, single).items()
    }
    best_here = float(np.max(_means(asked)))
    predicted, observed, weights = _answers(asked)
    return {
        **shares,
        "regret": shares["oracle"] - shares["laar"],
        "best_single_in_hindsight": best_here,
        "brier": _brier(asked),
        "ece": _calibration_error(predicted, observed, weights),
    }


def _brier(asked: Asked) -> float:
    """The Brier score over single answers, also where a score is the mean of several."""
    known = asked.answers > 0
    p, mean = asked.untold[known], asked.scores[known]
    errors = p**2 - 2 * p * mean + asked.squares[known]
    return float(np.average(errors, weights=asked.answers[known]))


def _answers(asked: Asked) -> tuple[Floats, Floats, Floats]:
    """Predicted, observed and how many answers, of each question and model."""
    known = asked.answers > 0
    return asked.untold[known], asked.scores[known], asked.answers[known]


def _bins(predicted: Floats) -> NDArray[np.intp]:
    return np.minimum((predicted * _BINS).astype(np.intp), _BINS - 1)


def _calibration_error(predicted: Floats, observed: Floats, weights: Floats) -> float:
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


def _lengths(asked: Asked) -> dict[str, dict[str, float]]:
    """Predicted against observed by length; only lengths with answers enough."""
    found = {}
    for bucket in np.unique(asked.buckets):
        predicted, observed, weights = _answers(asked.of(asked.buckets == bucket))
        if weights.sum() < MIN_BUCKET_ANSWERS:
            continue
        mean, share = (float(np.average(each, weights=weights)) for each in (predicted, observed))
        found[str(bucket)] = {
            "answers": float(weights.sum()),
            "predicted": mean,
            "observed": share,
            "error": abs(mean - share),
            "ece": _calibration_error(predicted, observed, weights),
        }
    return found


def _resampled(values: Mapping[str, Floats], asked: Asked, rng: np.random.Generator) -> Floats:
    """Means of each of the values over resampled questions; shape (values, resamples)."""
    count = len(asked.tasks)
    stacked = np.stack(list(values.values())) * asked.weights
    found = np.empty((len(stacked), _RESAMPLES))
    for at in range(_RESAMPLES):
        drawn = np.bincount(rng.integers(0, count, count), minlength=count)
        found[:, at] = stacked @ drawn / (asked.weights @ drawn)
    return found


def _interval(samples: Floats) -> list[float]:
    return [float(edge) for edge in np.quantile(samples, (0.025, 0.975))]


def _intervals(asked: Asked, single: int, rng: np.random.Generator) -> dict[str, object]:
    choices = _choices(asked, single)
    samples = dict(zip(choices, _resampled(choices, asked, rng), strict=True))
    return {
        "intervals": {
            **{name: _interval(each) for name, each in samples.items()},
            "laar_less_best_single": _interval(samples["laar"] - samples["best_single"]),
            "regret": _interval(samples["oracle"] - samples["laar"]),
        }
    }


def _attempts(
    artifact: Capability, asked: Asked, single: int, rng: np.random.Generator
) -> dict[str, object]:
    """The share right within one, two and three attempts, and how well the second is predicted."""
    whole = asked.of((asked.answers == 1).all(axis=1))
    if len(whole.models) < 2 or not len(whole.tasks):
        return {}
    capability = CapabilityModel(artifact)
    most = min(3, len(whole.models))
    count = len(whole.tasks)
    right = {name: np.zeros((most, count)) for name in ("laar", "marginal", "best_singles")}
    fixed = np.argsort(-_means(whole), kind="stable")
    fixed = np.array([single, *(at for at in fixed if at != single)])
    errors: list[tuple[float, float]] = []
    for row in range(count):
        scores, marginal = whole.scores[row], whole.untold[row]
        orders = {
            "marginal": np.argsort(-marginal, kind="stable"),
            "best_singles": fixed,
            "laar": np.array(_order(capability, whole.models, marginal, most)),
        }
        for name, order in orders.items():
            right[name][:, row] = np.maximum.accumulate(scores[order[:most]])
        first = int(orders["laar"][0])
        if scores[first] < 0.5:
            then = int(orders["laar"][1])
            given = capability.given_failures(marginal, whole.models, [whole.models[first]])
            errors.append(((marginal[then] - scores[then]) ** 2, (given[then] - scores[then]) ** 2))
    found: dict[str, object] = {
        name: [float(np.average(each, weights=whole.weights)) for each in within]
        for name, within in right.items()
    }
    gained = {str(at): right["laar"][at] - right["laar"][at - 1] for at in range(1, most)}
    found["value_of_attempt"] = {
        str(at + 1): {"value": float(np.average(gained[str(at)])), "interval": _interval(samples)}
        for at, samples in zip(range(1, most), _resampled(gained, whole, rng), strict=True)
    }
    if errors:
        plain, given_failure = np.array(errors).T
        found["second_after_failure"] = {
            "attempts": len(errors),
            "brier_marginal": float(plain.mean()),
            "brier": float(given_failure.mean()),
            "better_by": float(1 - given_failure.mean() / plain.mean()) if plain.mean() else 0.0,
        }
    return found


def _order(
    capability: CapabilityModel, models: Sequence[str], marginal: Floats, most: int
) -> list[int]:
    """Models in the order that laar asks them, each given that those before have failed."""
    order: list[int] = []
    for _ in range(most):
        row = capability.given_failures(marginal, models, [models[at] for at in order])
        row = np.array(row)
        row[order] = -1.0
        order.append(int(np.argmax(row)))
    return order


def _frontiers(asked: Asked, single: int, rng: np.random.Generator) -> dict[str, object]:
    """Finds by unit the accuracy at the best single model's cost, and the cost of its accuracy.

    A question goes to the model with the largest P(correct) less its cost times a price; the price
    that fits is found on these questions, as a budget would set it. Two prices next to each other
    may share the questions.
    """
    rows = np.arange(len(asked.tasks))
    found: dict[str, object] = {}
    alone = _single(asked, single)
    for unit, costs in asked.costs.items():
        usual = float(np.average(costs[rows, alone], weights=asked.weights))
        if not usual > 0:
            continue
        scores, spent = [], []
        for price in _PRICES:
            picked = _picked(asked.untold - price * costs / usual, asked)
            scores.append(asked.scores[rows, picked])
            spent.append(costs[rows, picked])
        values = {f"s{at}": each for at, each in enumerate(scores)}
        values |= {f"c{at}": each for at, each in enumerate(spent)}
        values |= {"s": asked.scores[rows, alone], "c": costs[rows, alone]}
        samples = _resampled(values, asked, rng)
        exact = np.array([np.average(each, weights=asked.weights) for each in values.values()])
        at_cost, at_accuracy = _same_cost(exact), _same_accuracy(exact)
        found[unit] = {
            "best_single_cost": usual,
            "best_single_accuracy": float(exact[-2]),
            "accuracy_at_same_cost": at_cost,
            "accuracy_at_same_cost_interval": _interval(
                np.array([_same_cost(each) for each in samples.T])
            ),
            "cost_at_same_accuracy": at_accuracy,
            "cost_at_same_accuracy_interval": _interval(
                np.array([_same_accuracy(each) for each in samples.T])
            ),
            "frontier": [
                [float(cost), float(score)]
                for score, cost in zip(*np.split(exact[:-2], 2), strict=True)
            ],
        }
    return found


def _same_cost(values: Floats) -> float:
    """The most accuracy for the single model's cost, on the line between neighbouring prices."""
    scores, costs = np.split(values[:-2], 2)
    best = float(scores[costs <= values[-1]].max(initial=0.0))
    for a, b in zip(range(len(costs) - 1), range(1, len(costs)), strict=True):
        low, high = sorted((costs[a], costs[b]))
        if low <= values[-1] <= high and high > low:
            share = (values[-1] - costs[a]) / (costs[b] - costs[a])
            best = max(best, float(scores[a] + share * (scores[b] - scores[a])))
    return best


def _same_accuracy(values: Floats) -> float:
    """The least cost of the single model's accuracy, on the line between neighbouring prices."""
    scores, costs = np.split(values[:-2], 2)
    best = float(min(costs[scores >= values[-2]], default=values[-1]))
    for a, b in zip(range(len(costs) - 1), range(1, len(costs)), strict=True):
        low, high = sorted((scores[a], scores[b]))
        if low <= values[-2] <= high and high > low:
            share = (values[-2] - scores[a]) / (scores[b] - scores[a])
            best = min(best, float(costs[a] + share * (costs[b] - costs[a])))
    return best
