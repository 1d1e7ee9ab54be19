"""How success probabilities move once other models have failed on the same request.

Most of it is a difficulty that all models share: its spread is fitted by maximum likelihood on the
verdicts of several models on the same queries (`laar.accuracy.difficulty`). A pair of models, which
may fail on the same questions or on different ones, adds a shift of the log odds:

    log odds(m correct | T failed) = log odds(m correct | T failed, difficulty) + sum of pair(m, t)

Examples are every model of a query together with subsets T of the other models that failed on it;
each (query, model) weighs the same however many subsets it has. A ridge holds back shifts that the
data does not show.
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
from laar.accuracy.difficulty import MAX_SPREAD, curves, given, nodes
from laar.accuracy.features import Features
from laar.accuracy.fitting.outcomes import MeasuredOutcome

_MAX_SUBSETS = 16  # of one (query, model): all, for up to five models
_MAX_EXAMPLES = 100_000
_MAX_PAIR_MODELS = 12  # 132 pair terms; beyond, the shared term has to do
_MIN_PAIR_QUERIES = 100  # with an outcome of m where t failed
_MAX_QUERIES = 20_000  # that the spread is fitted on
_WORTH_A_SPREAD = 2.0  # log likelihood: as much as chance gives one time in twenty
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
    spread = _spread(capability, outcomes)
    examples = list(_examples(capability, outcomes, spread))
    pairs = _pairs(examples, capability.models) if use_pairs else []
    each = _solve(examples, pairs) if pairs else []
    return RetryTerms(
        per_failure=0.0,
        pairs=[
            PairTerm(model=model, failed=failed, log_odds=value)
            for (model, failed), value in zip(pairs, each, strict=True)
        ],
        brier_unconditional=None,
        brier=None,
        attempts=0,
        difficulty=spread,
    )


def _by_query(
    outcomes: Sequence[tuple[MeasuredOutcome, Features]],
) -> list[list[tuple[MeasuredOutcome, Features]]]:
    """Queries that several models answered, in an order that is the same from run to run."""
    by_query: dict[str, list[tuple[MeasuredOutcome, Features]]] = defaultdict(list)
    for outcome, features in outcomes:
        by_query[outcome.query_id].append((outcome, features))
    queries = [answers for answers in by_query.values() if len(answers) > 1]
    Random(0).shuffle(queries)
    return queries


def _spread(
    capability: CapabilityModel, outcomes: Sequence[tuple[MeasuredOutcome, Features]]
) -> float:
    """The spread of the difficulty under which the verdicts are most likely, held back to 0."""
    from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]  # ships no types

    queries = _by_query(outcomes)[:_MAX_QUERIES]
    if not queries:
        return 0.0
    column = {model: at for at, model in enumerate(capability.models)}
    verdicts = np.full((len(queries), len(column)), np.nan)
    p = np.full_like(verdicts, 0.5)
    for row, answers in enumerate(queries):
        for outcome, features in answers:
            at = row, column[outcome.model]
            verdicts[at] = outcome.right
            p[at] = capability.probabilities((outcome.model,), features)[0]
    known, right = ~np.isnan(verdicts), np.nan_to_num(verdicts)[..., None]

    def loss(spread: float) -> float:
        at = curves(p, spread)
        likely = at**right * (1 - at) ** (1 - right)
        likely = np.where(known[..., None], likely, 1.0).prod(axis=1) @ nodes[1]
        return float(-np.log(np.maximum(likely, 1e-300)).sum()) + 0.5 * spread**2

    found = minimize_scalar(loss, bounds=(0.0, MAX_SPREAD), method="bounded")
    # The edge of the bounds is never reached exactly; no worse without it means independent.
    return 0.0 if loss(0.0) <= float(found.fun) + _WORTH_A_SPREAD else round(float(found.x), 4)


def _examples(
    capability: CapabilityModel,
    outcomes: Sequence[tuple[MeasuredOutcome, Features]],
    spread: float,
) -> Iterator[_Example]:
    rng = Random(0)  # which subsets stand for many must not change from run to run
    made = 0
    for answers in _by_query(outcomes):
        failing = [outcome.model for outcome, _ in answers if not outcome.correct]
        for outcome, features in answers:
            others = [model for model in failing if model != outcome.model]
            if not others or made >= _MAX_EXAMPLES:
                continue
            subsets = _subsets(others, rng)
            made += len(subsets)
            row = capability.probabilities((outcome.model, *others), features)
            for failed in subsets:
                wrong = np.array([False, *(model in failed for model in others)])
                p = float(np.clip(given(row, wrong, spread)[0], 0.001, 0.999))
                log_odds = float(np.log(p / (1 - p)))
                for correct, share in ((True, outcome.right), (False, 1 - outcome.right)):
                    if share > 0:
                        weight = share / len(subsets)
                        yield _Example(outcome.model, failed, log_odds, correct, weight)


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


def _solve(examples: Sequence[_Example], pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Penalised maximum likelihood with an offset, which scikit-learn has no room for."""
    from scipy.optimize import minimize

    column = {pair: at for at, pair in enumerate(pairs)}
    x = np.zeros((len(examples), len(pairs)))
    for row, example in enumerate(examples):
        for failed in example.failed:
            if (at := column.get((example.model, failed))) is not None:
                x[row, at] = 1.0
    offset = np.array([example.log_odds for example in examples])
    sign = np.array([1.0 if example.correct else -1.0 for example in examples])
    weight = np.array([example.weight for example in examples])

    def loss(beta: _Floats) -> tuple[float, _Floats]:
        margin = sign * (offset + x @ beta)
        value = weight @ np.logaddexp(0, -margin) + 0.5 * _RIDGE_PAIR * beta @ beta
        slope = -(weight * sign / (1 + np.exp(np.clip(margin, -500, 500)))) @ x
        return float(value), slope + _RIDGE_PAIR * beta

    bounds = [(-50.0, 50.0)] * len(pairs)
    found = minimize(loss, np.zeros(len(pairs)), jac=True, method="L-BFGS-B", bounds=bounds)
    each: list[float] = np.round(np.asarray(found.x, dtype=float), 4).tolist()
    return each
