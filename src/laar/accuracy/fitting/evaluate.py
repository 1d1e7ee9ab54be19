"""The quality of an artifact on queries it was not fitted on.

Three questions: are the probabilities right (Brier score, AUC, calibration error, reliability
bins); do the retry terms help where they are used, at attempts 2 and later; and how much slower
than the oracle would routing by this artifact have been (regret), replayed over the held-out
queries with each model's measured verdict and latency, on an idle fleet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import Capability, HeldOut
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.fitting.outcomes import MeasuredOutcome, features_of_outcome

MAX_ATTEMPTS = 10
"""The paper's cap R on attempts."""

_BINS = 10

_Floats = NDArray[np.float64]


class Bin(NamedTuple):
    """One bin of a reliability diagram: mean predicted and observed share of correct answers."""

    predicted: float
    observed: float
    outcomes: int


class RetryScores(NamedTuple):
    """Brier scores at attempts 2 and later, with and without the retry terms; 0 if none."""

    brier_unconditional: float
    brier: float
    attempts: int


class Replay(NamedTuple):
    """One policy over the held-out queries.

    Args:
        policy: ``laar``, ``best single: MODEL``, ``oracle``, ``laar without an artifact``, ``any
            model``.
        first_right: queries whose first answer was correct.
        success_rate: queries that got a correct answer.
        ttca_s: mean time to correct answer, right-censored after `MAX_ATTEMPTS`.
        regret_s: `ttca_s` less the oracle's.
    """

    policy: str
    first_right: float
    success_rate: float
    ttca_s: float
    regret_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Held-out quality of a fit.

    Args:
        overall: scores over all models.
        models: scores by model.
        reliability: bins of equal width with outcomes in them.
        retries: the effect of the retry terms.
        replays: replays in the order of `Replay.policy`; empty if no query was put to all models.
        queries: number of held-out queries.
    """

    overall: HeldOut
    models: Mapping[str, HeldOut]
    reliability: Sequence[Bin]
    retries: RetryScores
    replays: Sequence[Replay]
    queries: int


def evaluate(artifact: Capability, held_out: Sequence[MeasuredOutcome]) -> Evaluation:
    """Score an artifact on outcomes that it was not fitted on."""
    capability = CapabilityModel(artifact)
    predicted: dict[str, list[float]] = defaultdict(list)
    right: dict[str, list[float]] = defaultdict(list)
    for outcome in held_out:
        row = capability.probabilities((outcome.model,), features_of_outcome(outcome))
        predicted[outcome.model].append(float(row[0]))
        right[outcome.model].append(outcome.right)
    all_predicted = np.concatenate([np.array(predicted[model]) for model in predicted])
    all_right = np.concatenate([np.array(right[model]) for model in predicted])
    return Evaluation(
        overall=_held_out(all_predicted, all_right),
        models={m: _held_out(np.array(predicted[m]), np.array(right[m])) for m in predicted},
        reliability=_bins(all_predicted, all_right),
        retries=retry_scores(artifact, held_out),
        replays=_replays(capability, held_out),
        queries=len({outcome.query_id for outcome in held_out}),
    )


def retry_scores(artifact: Capability, held_out: Sequence[MeasuredOutcome]) -> RetryScores:
    """Return Brier scores of the later attempts that routing by this artifact would make."""
    capability = CapabilityModel(artifact)
    plain: list[float] = []
    given: list[float] = []
    for answers in _by_query(held_out).values():
        tried: list[str] = []
        for outcome in _attempts(capability, answers):
            if tried:
                features = features_of_outcome(outcome)
                models = (outcome.model,)
                right = outcome.right
                plain.append((float(capability.probabilities(models, features)[0]) - right) ** 2)
                moved = float(capability.probabilities(models, features, tried)[0])
                given.append((moved - right) ** 2)
            tried.append(outcome.model)
    if not plain:
        return RetryScores(0.0, 0.0, 0)
    return RetryScores(float(np.mean(plain)), float(np.mean(given)), len(plain))


def _attempts(
    capability: CapabilityModel, answers: Mapping[str, MeasuredOutcome], *, by_accuracy: bool = True
) -> Iterator[MeasuredOutcome]:
    """Yield models in the order of latency / P(correct), up to the first that was correct.

    Without `by_accuracy` the order is that of latency: speeds are learned while serving, P(correct)
    only comes from an artifact or from reported outcomes.
    """
    left = dict(answers)
    tried: list[str] = []
    while left:
        models = tuple(left)
        c_s = capability.seconds_per_token(models)
        fixed_s = capability.fixed_s(models)
        costs = []
        for at, model in enumerate(models):
            tokens = left[model].prompt_tokens or left[model].prompt_chars / 4
            p = 1.0
            if by_accuracy:
                features = features_of_outcome(left[model])
                p = float(capability.probabilities((model,), features, tried)[0])
            costs.append((c_s[at] * tokens + fixed_s[at]) / p)
        outcome = left.pop(models[int(np.argmin(costs))])
        yield outcome
        if outcome.correct:
            return
        tried.append(outcome.model)


def _replays(capability: CapabilityModel, held_out: Sequence[MeasuredOutcome]) -> list[Replay]:
    everyone = set(capability.models)
    complete = [a for a in _by_query(held_out).values() if everyone <= a.keys()]
    if not complete:
        return []
    routed = [_tried(list(_attempts(capability, answers))) for answers in complete]
    fastest = [_tried(list(_attempts(capability, a, by_accuracy=False))) for a in complete]
    chance = [_tried(_up_to_right(order)) for answers in complete for order in _orders(answers)]
    # At temperature 0 one model gives one answer, however often it is asked.
    single = {
        f"best single: {model}": [
            _Tried(
                bool(o.correct), bool(o.correct), o.latency_s * (1 if o.correct else MAX_ATTEMPTS)
            )
            for o in (answers[model] for answers in complete)
        ]
        for model in sorted(everyone)
    }
    best = min(single, key=lambda policy: _mean_s(single[policy]))
    # Asks the fastest model that is right, and none if none is: no policy can beat that.
    known = []
    for answers in complete:
        right = [outcome.latency_s for outcome in answers.values() if outcome.correct]
        known.append(_Tried(bool(right), bool(right), min(right, default=0.0)))
    return [
        Replay(
            policy,
            sum(one.first_right for one in tries) / len(tries),
            sum(one.right for one in tries) / len(tries),
            _mean_s(tries),
            _mean_s(tries) - _mean_s(known),
        )
        for policy, tries in (
            ("laar", routed),
            (best, single[best]),
            ("oracle", known),
            ("laar without an artifact", fastest),
            ("any model", chance),
        )
    ]


class _Tried(NamedTuple):
    """A question's attempts: whether the first was right, whether one was, seconds together."""

    first_right: bool
    right: bool
    seconds: float


def _tried(made: Sequence[MeasuredOutcome]) -> _Tried:
    return _Tried(
        bool(made[0].correct), bool(made[-1].correct), sum(outcome.latency_s for outcome in made)
    )


def _orders(answers: Mapping[str, MeasuredOutcome]) -> Iterator[list[MeasuredOutcome]]:
    """Yield each model first once, the others in turn after it: chance, without drawing."""
    listed = [answers[model] for model in sorted(answers)]
    for start in range(len(listed)):
        yield listed[start:] + listed[:start]


def _up_to_right(order: Sequence[MeasuredOutcome]) -> list[MeasuredOutcome]:
    made = []
    for outcome in order:
        made.append(outcome)
        if outcome.correct:
            break
    return made


def _mean_s(tries: Sequence[_Tried]) -> float:
    return sum(one.seconds for one in tries) / len(tries)


def _by_query(outcomes: Sequence[MeasuredOutcome]) -> dict[str, dict[str, MeasuredOutcome]]:
    grouped: dict[str, dict[str, MeasuredOutcome]] = defaultdict(dict)
    for outcome in outcomes:
        grouped[outcome.query_id][outcome.model] = outcome
    return grouped


def _held_out(predicted: _Floats, right: _Floats) -> HeldOut:
    from sklearn.metrics import roc_auc_score

    bins = _bins(predicted, right)
    gap = sum(b.outcomes * abs(b.predicted - b.observed) for b in bins) / len(right)
    correct = right >= 0.5
    return HeldOut(
        outcomes=len(right),
        brier=float(np.mean((predicted - right) ** 2)),
        auc=float(roc_auc_score(correct, predicted)) if 0 < correct.sum() < len(right) else None,
        calibration_error=gap,
    )


def _bins(predicted: _Floats, right: _Floats) -> list[Bin]:
    at = np.minimum((predicted * _BINS).astype(int), _BINS - 1)
    return [
        Bin(float(predicted[here].mean()), float(right[here].mean()), int(here.sum()))
        for here in (at == number for number in range(_BINS))
        if here.any()
    ]
