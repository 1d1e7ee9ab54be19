"""How success probabilities move once other models have failed on the same request.

LAAR assumes independent attempts (section 5.1). They are not: a hard query is hard for all. From
outcomes of several models on the same queries this fits

    log odds(m correct | T failed) = log odds(m correct) + per_failure * |T| + sum of pair(m, t)

with the unconditional log odds as a fixed offset. Examples are every model of a query together with
subsets T of the other models that failed on it; each (query, model) weighs the same however many
subsets it has. A ridge holds back what the data does not show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import PairTerm, RetryTerms
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.fitting.outcomes import MeasuredOutcome

__all__ = ["fit_retry"]

_MAX_SUBSETS = 16  # of one (query, model): all, for up to five models
_MAX_EXAMPLES = 100_000
_MAX_PAIR_MODELS = 12  # 132 pair terms; beyond, the shared term has to do
_MIN_PAIR_QUERIES = 100  # with an outcome of m where t failed
_RIDGE_FAILURE = 1.0
_RIDGE_PAIR = 10.0  # a pair term must be worth some ten queries to move

_Floats = NDArray[np.float64]


class _Example(NamedTuple):
    model: str
    failed: tuple[str, ...]
    log_odds: float
    correct: bool
    weight: float


def fit_retry(
    capability: CapabilityModel,
    outcomes: Sequence[tuple[MeasuredOutcome, Features]],
    *,
    use_pairs: bool,
) -> RetryTerms:
    """Fits the retry terms on top of an artifact's unconditional probabilities."""
    examples = list(_examples(capability, outcomes))
    pairs = _pairs(examples, capability.models) if use_pairs else []
    per_failure, each = _solve(examples, pairs) if examples else (0.0, [])
    return RetryTerms(
        per_failure=per_failure,
        pairs=[
            PairTerm(model=model, failed=failed, log_odds=value)
            for (model, failed), value in zip(pairs, each, strict=True)
        ],
        brier_unconditional=None,
        brier=None,
        attempts=0,
    )


def _examples(
    capability: CapabilityModel, outcomes: Sequence[tuple[MeasuredOutcome, Features]]
) -> Iterator[_Example]:
    by_query: dict[str, list[tuple[MeasuredOutcome, Features]]] = defaultdict(list)
    for outcome, features in outcomes:
        by_query[outcome.query_id].append((outcome, features))
    rng = Random(0)  # which subsets stand for many must not change from run to run
    queries = list(by_query.values())
    rng.shuffle(queries)
    made = 0
    for answers in queries:
        failing = [outcome.model for outcome, _ in answers if not outcome.correct]
        for outcome, features in answers:
            others = [model for model in failing if model != outcome.model]
            if not others or made >= _MAX_EXAMPLES:
                continue
            p = float(capability.probabilities((outcome.model,), features)[0])
            subsets = _subsets(others, rng)
            made += len(subsets)
            for failed in subsets:
                yield _Example(
                    outcome.model,
                    failed,
                    float(np.log(p / (1 - p))),
                    bool(outcome.correct),
                    1 / len(subsets),
                )


def _subsets(models: Sequence[str], rng: Random) -> list[tuple[str, ...]]:
    """All subsets but the empty one if they are few, else a sample over all sizes."""
    if 2 ** len(models) <= _MAX_SUBSETS:
        sizes = range(1, len(models) + 1)
        return [subset for size in sizes for subset in combinations(models, size)]
    return [tuple(rng.sample(models, rng.randint(1, len(models)))) for _ in range(_MAX_SUBSETS)]


def _pairs(examples: Sequence[_Example], models: Sequence[str]) -> list[tuple[str, str]]:
    if len(models) > _MAX_PAIR_MODELS:
        return []
    queries: dict[tuple[str, str], float] = defaultdict(float)
    for example in examples:
        for failed in example.failed:
            # Half of a query's subsets hold any one failed model.
            queries[example.model, failed] += 2 * example.weight
    return sorted(pair for pair, seen in queries.items() if seen >= _MIN_PAIR_QUERIES)


def _solve(
    examples: Sequence[_Example], pairs: Sequence[tuple[str, str]]
) -> tuple[float, list[float]]:
    """Penalised maximum likelihood with an offset, which scikit-learn has no room for."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]  # ships no types

    column = {pair: at for at, pair in enumerate(pairs, start=1)}
    x = np.zeros((len(examples), 1 + len(pairs)))
    for row, example in enumerate(examples):
        x[row, 0] = len(example.failed)
        for failed in example.failed:
            if (at := column.get((example.model, failed))) is not None:
                x[row, at] = 1.0
    offset = np.array([example.log_odds for example in examples])
    sign = np.array([1.0 if example.correct else -1.0 for example in examples])
    weight = np.array([example.weight for example in examples])
    ridge = np.array([_RIDGE_FAILURE] + [_RIDGE_PAIR] * len(pairs))

    def loss(beta: _Floats) -> tuple[float, _Floats]:
        margin = sign * (offset + x @ beta)
        value = weight @ np.logaddexp(0, -margin) + 0.5 * ridge @ beta**2
        slope = -(weight * sign / (1 + np.exp(np.clip(margin, -500, 500)))) @ x + ridge * beta
        return float(value), slope

    bounds = [(-50.0, 0.0)] + [(-50.0, 50.0)] * len(pairs)
    found = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds)
    per_failure, *each = np.round(np.asarray(found.x, dtype=float), 4).tolist()
    return per_failure, each
