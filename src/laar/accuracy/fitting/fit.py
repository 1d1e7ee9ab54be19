"""Fit an artifact to outcomes: one logistic regression per model (LAAR, section 5.2).

The features are classes, so outcomes are summed by cell and the regression uses the counts; thus
the time to fit hardly grows with the data. Language, bucket and task are one-hot encoded with their
pairwise interactions; the strength of the L2 penalty is chosen by cross-validation over queries.

All quality figures are from held-out data: queries are split in half by a hash of their id, and a
fit on one half is evaluated on the other. The artifact's coefficients are fitted on all queries.
scikit-learn and scipy are imported only in this package; serving an artifact needs neither.
"""

from __future__ import annotations

from base64 import b64encode
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import log
from random import Random
from typing import NamedTuple
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from laar.accuracy.artifact import (
    MAX_MODELS,
    Capability,
    FittedCell,
    FittedOn,
    ModelCapability,
    RetryTerms,
    Speed,
    terms_of,
)
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.difficulty import MAX_SPREAD, curves, nodes
from laar.accuracy.features import Features
from laar.accuracy.fitting.evaluate import Evaluation, evaluate
from laar.accuracy.fitting.outcomes import MeasuredOutcome, by_query, features_of_outcome
from laar.accuracy.fitting.records import fingerprint, is_kept_back, question_of
from laar.accuracy.fitting.speed import fit_speed, rounded
from laar.accuracy.fitting.text import fit_text
from laar.errors import SettingError, first_fault

_STRENGTHS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)  # C, the inverse of the L2 penalty
_FOLDS = 5
_MAX_LOG_ODDS = 50.0
_MAX_QUERIES = 20_000  # maximum used to fit the spread of the difficulty
_WORTH_A_SPREAD = 2.0  # gain in log likelihood; by chance, at most one time in twenty
_MIN_RATIO_CHARS = 400  # shorter prompts measure the chat template, not the text

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """An artifact, and the quality of the procedure on held-out queries.

    Args:
        evaluation: the quality of its probabilities.
        no_speed: reasons why models have no speed, by model.
    """

    artifact: Capability
    evaluation: Evaluation
    no_speed: Mapping[str, str]


class _Counts(NamedTuple):
    """Outcomes of one model in one cell and fold."""

    features: Features
    fold: int
    right: float
    wrong: float


def fit(
    outcomes: Sequence[MeasuredOutcome],
    *,
    created: str,
    data_sha256: str,
    hold_out: float = 0.0,
) -> Fit:
    """Fit an artifact and evaluate the procedure.

    Raise `SettingError` if there are no judged outcomes, too few queries to hold any out, or too
    many models, languages, tasks or queries for an artifact.

    Args:
        outcomes: judged outcomes, one per query and model.
        created: the date to record in the artifact.
        data_sha256: hash of the files that the outcomes come from.
        hold_out: share of the queries, chosen by a hash, that is reserved for `laar evaluate`; the
            artifact then records which queries it was fitted on.
    """
    judged = [
        outcome
        for outcome in outcomes
        if outcome.correct is not None and not is_kept_back(outcome.query_id, hold_out)
    ]
    for what in ("model", "task"):
        size = len({getattr(outcome, what) for outcome in judged})
        if size > MAX_MODELS:
            raise SettingError(f"{size} {what}s; an artifact holds at most {MAX_MODELS}: fit fewer")
    try:
        return _fit(judged, created, data_sha256, hold_out)
    except ValidationError as fault:
        raise SettingError(
            f"too large for an artifact: {fault.title}.{first_fault(fault)}; fit fewer languages, "
            "tasks or queries"
        ) from None


def _fit(judged: Sequence[MeasuredOutcome], created: str, data_sha256: str, hold_out: float) -> Fit:
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

    first = [outcome for outcome in judged if not _held_out(outcome.query_id)]
    second = [outcome for outcome in judged if _held_out(outcome.query_id)]
    if not first or not second:
        raise SettingError(f"{len(judged)} outcomes are too few to fit: measure more queries")
    # The matrices have only about 30 columns. Threads of the linear algebra library would wait for
    # each other: on a busy machine, twenty times as long as the work itself takes.
    with threadpool_limits(1):
        on_first, _ = _artifact(first, created, data_sha256)
        evaluation = evaluate(on_first, second)
        on_all, no_speed = _artifact([*first, *second], created, data_sha256)
        seen = sorted({fingerprint(outcome.query_id) for outcome in judged})
        added = {
            "text": fit_text(judged),
            "fitted_on": FittedOn(
                held_out=hold_out, questions=b64encode(b"".join(seen)).decode("ascii")
            ),
        }
    models = {
        name: model.model_copy(update={"held_out": evaluation.models.get(name)})
        for name, model in on_all.models.items()
    }
    return Fit(
        artifact=on_all.model_copy(update={"models": models, **added}),
        evaluation=evaluation,
        no_speed=no_speed,
    )


def _held_out(query_id: str) -> bool:
    return blake2b(question_of(query_id).encode(), digest_size=1).digest()[0] % 2 == 1


def _artifact(
    outcomes: Sequence[MeasuredOutcome], created: str, data_sha256: str
) -> tuple[Capability, dict[str, str]]:
    """Return an artifact, and for each model without a speed the reason."""
    artifact, no_speed = without_retries(outcomes, created, data_sha256)
    retry = RetryTerms(difficulty=_difficulty(CapabilityModel(artifact), outcomes))
    return artifact.model_copy(update={"retry": retry}), no_speed


def without_retries(
    outcomes: Sequence[MeasuredOutcome], created: str, data_sha256: str
) -> tuple[Capability, dict[str, str]]:
    """Return an artifact without retry terms, and for each model without a speed the reason."""
    by_model: dict[str, list[MeasuredOutcome]] = defaultdict(list)
    by_base: dict[str, list[MeasuredOutcome]] = defaultdict(list)
    for outcome in outcomes:
        by_model[outcome.model].append(outcome)
        by_base[outcome.base or outcome.model].append(outcome)
    speeds = {name: fit_speed(by_base[own[0].base or name], own) for name, own in by_model.items()}
    artifact = Capability(
        created=created,
        data_sha256=data_sha256,
        outcomes=len(outcomes),
        models={name: _fit_model(by_model[name], speeds[name]) for name in sorted(by_model)},
        retry=RetryTerms(),
    )
    return artifact, {name: found for name, found in speeds.items() if isinstance(found, str)}


def _difficulty(capability: CapabilityModel, outcomes: Sequence[MeasuredOutcome]) -> float:
    """Return the most likely spread of a question's difficulty, shrunk toward 0.

    All models share the difficulty (`laar.accuracy.difficulty`), so verdicts on several models'
    answers to one query reveal it. The unconditional probabilities are those of `capability`.
    """
    from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]  # ships no types

    queries = [answers for answers in by_query(outcomes).values() if len(answers) > 1]
    Random(0).shuffle(queries)
    queries = queries[:_MAX_QUERIES]
    if not queries:
        return 0.0
    column = {model: at for at, model in enumerate(capability.models)}
    verdicts = np.full((len(queries), len(column)), np.nan)
    p = np.full_like(verdicts, 0.5)
    for row, answers in enumerate(queries):
        for model, outcome in answers.items():
            at = row, column[model]
            verdicts[at] = outcome.right
            p[at] = capability.probabilities((model,), features_of_outcome(outcome))[0]
    known, right = ~np.isnan(verdicts), np.nan_to_num(verdicts)[..., None]

    def loss(spread: float) -> float:
        at = curves(p, spread)
        likely = at**right * (1 - at) ** (1 - right)
        likely = np.where(known[..., None], likely, 1.0).prod(axis=1) @ nodes[1]
        return float(-np.log(np.maximum(likely, 1e-300)).sum()) + 0.5 * spread**2

    found = minimize_scalar(loss, bounds=(0.0, MAX_SPREAD), method="bounded")
    # The minimizer never tries the bounds. If 0 is hardly worse, treat attempts as independent.
    return 0.0 if loss(0.0) <= float(found.fun) + _WORTH_A_SPREAD else round(float(found.x), 4)


def _fit_model(outcomes: Sequence[MeasuredOutcome], speed: Speed | str) -> ModelCapability:
    counts = _counted(outcomes)
    right = sum(count.right for count in counts)
    cells: defaultdict[Features, _Floats] = defaultdict(lambda: np.zeros(2))
    for count in counts:
        cells[count.features] += count.right + count.wrong, count.right
    # If all are correct or all wrong, regression is impossible: add half an outcome of each kind.
    odds = (right + 0.5) / (len(outcomes) - right + 0.5)
    intercept, terms, strength = round(log(odds), 4), dict[str, float](), None
    if 0 < right < len(outcomes):
        intercept, terms, strength = _regress(counts)
    return ModelCapability(
        intercept=intercept,
        terms=terms,
        mean=right / len(outcomes),
        regularisation=strength,
        cells=[
            FittedCell(
                language=f.language,
                bucket=f.bucket,
                task=f.task,
                outcomes=round(n),
                correct=round(k),
            )
            for f, (n, k) in sorted(cells.items())
        ],
        speed=speed if isinstance(speed, Speed) else None,
        chars_per_token=_chars_per_token(outcomes),
        held_out=None,
    )


def _counted(outcomes: Sequence[MeasuredOutcome]) -> list[_Counts]:
    sums: defaultdict[tuple[Features, int], _Floats] = defaultdict(lambda: np.zeros(2))
    for outcome in outcomes:
        drawn = blake2b(question_of(outcome.query_id).encode(), digest_size=2).digest()[1]
        sums[features_of_outcome(outcome), drawn % _FOLDS] += outcome.right, 1 - outcome.right
    return [_Counts(*key, *sums[key].tolist()) for key in sorted(sums)]


def _regress(counts: Sequence[_Counts]) -> tuple[float, dict[str, float], float]:
    """Return intercept, terms, and the C chosen by cross-validation."""
    names = _useful_terms({count.features for count in counts})
    column = {name: at for at, name in enumerate(names)}
    design = np.zeros((len(counts), len(names)))
    for row, count in enumerate(counts):
        for term in terms_of(count.features):
            if term in column:
                design[row, column[term]] = 1.0
    x = np.vstack([design, design])
    y = np.repeat([1, 0], len(counts))
    weight = np.array([c.right for c in counts] + [c.wrong for c in counts], dtype=float)
    folds = np.array([c.fold for c in counts] * 2)
    losses = [_cross_validated(x, y, weight, folds, strength) for strength in _STRENGTHS]
    strength = _STRENGTHS[int(np.argmin(losses))]
    regression = _logistic(x, y, weight, strength)
    bounded = np.clip(regression, -_MAX_LOG_ODDS, _MAX_LOG_ODDS)
    intercept, *coefficients = np.round(bounded, 4).tolist()  # more digits would be noise
    return intercept, dict(zip(names, coefficients, strict=True)), strength


def _useful_terms(cells: set[Features]) -> list[str]:
    """Return terms that distinguish cells; of equivalent ones, the shortest."""
    carriers: dict[str, set[Features]] = defaultdict(set)
    for cell in cells:
        for term in terms_of(cell):
            carriers[term].add(cell)
    useful: dict[frozenset[Features], str] = {}
    for term in sorted(carriers, key=lambda name: (len(name.split()), name)):
        if len(carriers[term]) < len(cells):
            useful.setdefault(frozenset(carriers[term]), term)
    return sorted(useful.values())


def _cross_validated(
    x: _Floats, y: NDArray[np.int64], weight: _Floats, folds: NDArray[np.int64], strength: float
) -> float:
    """Return the log loss, summed over the left-out folds."""
    loss = 0.0
    for fold in range(_FOLDS):
        out = folds == fold
        kept = weight * ~out
        if not (kept[y == 1].sum() and kept[y == 0].sum()):
            continue  # all outcomes of one kind are in this fold
        intercept, *coefficients = _logistic(x[~out], y[~out], weight[~out], strength)
        log_odds = x[out] @ np.array(coefficients) + intercept
        loss += float(weight[out] @ np.logaddexp(0, np.where(y[out] == 1, -log_odds, log_odds)))
    return loss


def _logistic(x: _Floats, y: NDArray[np.int64], weight: _Floats, strength: float) -> _Floats:
    """Fit an L2-penalized logistic regression on weighted rows; return its coefficients."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    some = weight > 0
    if x.shape[1] == 0:  # there is only one cell
        right, wrong = weight[y == 1].sum(), weight[y == 0].sum()
        return np.array([log(right / wrong)])
    regression = LogisticRegression(C=strength, solver="newton-cholesky", max_iter=100)
    with catch_warnings():
        # If the line search gives up near the optimum, the fallback solver continues from there.
        simplefilter("ignore", ConvergenceWarning)
        regression.fit(x[some], y[some], sample_weight=weight[some])
    return np.concatenate([regression.intercept_, regression.coef_[0]])


def _chars_per_token(outcomes: Sequence[MeasuredOutcome]) -> dict[str, float]:
    ratios: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.prompt_tokens and outcome.prompt_chars >= _MIN_RATIO_CHARS:
            ratios[outcome.language].append(outcome.prompt_chars / outcome.prompt_tokens)
    return {
        name: rounded(min(max(float(np.median(values)), 0.01), 1000.0))
        for name, values in sorted(ratios.items())
    }
