"""Evaluate an artifact on queries it was not fitted on.

This answers two questions: are the probabilities right (Brier score, AUC, calibration error), and
what is gained by choosing models with them?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import Capability, HeldOut
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.fitting.outcomes import MeasuredOutcome, by_query, features_of_outcome
from laar.accuracy.retry import WRONG_ANSWER_S

_BINS = 10

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Held-out quality of a fit.

    Args:
        worth: sentences on what is gained by choosing models with the artifact on these queries.
    """

    models: Mapping[str, HeldOut]
    queries: int
    worth: str


def evaluate(artifact: Capability, held_out: Sequence[MeasuredOutcome]) -> Evaluation:
    """Score an artifact on outcomes that it was not fitted on."""
    capability = CapabilityModel(artifact)
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for outcome in held_out:
        (p,) = capability.probabilities((outcome.model,), features_of_outcome(outcome))
        pairs[outcome.model].append((float(p), outcome.right))
    scored = {model: np.array(rows).T for model, rows in pairs.items()}
    return Evaluation(
        models={model: _held_out(*columns) for model, columns in scored.items()},
        queries=len({outcome.query_id for outcome in held_out}),
        worth=_worth(capability, held_out),
    )


def _worth(capability: CapabilityModel, held_out: Sequence[MeasuredOutcome]) -> str:
    """Return what choosing models gains over the best single model."""
    models = capability.models
    asked = [a for a in by_query(held_out).values() if set(models) <= a.keys()]
    if not asked or len(models) < 2:
        return "Nothing to compare: only one model, or no held-out question answered by all."
    if not any(answer.correct for answers in asked for answer in answers.values()):
        return f"No model answered any of {len(asked)} held-out questions correctly."
    best = max(models, key=capability.base_rates.__getitem__)  # not the luckiest of these answers
    (_, _, correct_s), (right, took_s, _), (alone, alone_s, alone_correct_s) = (
        _figures([list(_attempts(capability, answers, first, wrong_s)) for answers in asked])
        for first, wrong_s in (("", None), ("", WRONG_ANSWER_S), (best, None))
    )
    return (
        f"On {len(asked)} questions that the fit had not seen, {right:.0%} of the first answers "
        f"are correct with this artifact, after {took_s:.2f} s, and {alone:.0%}, after "
        f"{alone_s:.2f} s, with {best} alone ({100 * (right - alone):+.0f} points). For clients "
        f"that ask another model after a wrong answer, a correct one takes {correct_s:.3g} s, or "
        f"{alone_correct_s:.3g} s if {best} is asked first."
    )


def _figures(tries: Sequence[Sequence[MeasuredOutcome]]) -> list[float]:
    """Return the share correct and mean seconds of first answers, and mean seconds to correct ones.

    The last mean excludes questions that no model answers correctly.
    """
    until_s = [sum(o.latency_s for o in each) for each in tries if each[-1].correct]
    firsts = [(each[0].right, each[0].latency_s) for each in tries]
    return [*map(float, np.mean(firsts, axis=0)), float(np.mean(until_s))]


def _attempts(
    capability: CapabilityModel,
    answers: Mapping[str, MeasuredOutcome],
    first: str,
    wrong_s: float | None,
) -> Iterator[MeasuredOutcome]:
    """Yield the outcome of `first`, then others by cost, up to a correct one.

    The cost is that of a client to which a wrong answer costs `wrong_s`, or else the next attempt.
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
            everyone = (model, *tried)
            row = capability.probabilities(everyone, features_of_outcome(left[model]))
            p = capability.given_failures(row, everyone, tried)[0]
            took_s = c_s[at] * tokens + fixed_s[at]
            costs.append(took_s / p if wrong_s is None else took_s + (1.0 - p) * wrong_s)
        outcome = left.pop(first if first in left else models[int(np.argmin(costs))])
        yield outcome
        if outcome.correct:
            return
        tried.append(outcome.model)


def _held_out(predicted: _Floats, right: _Floats) -> HeldOut:
    from sklearn.metrics import roc_auc_score

    bins = np.minimum((predicted * _BINS).astype(int), _BINS - 1)
    gap = np.abs(np.bincount(bins, predicted - right)).sum() / len(right)
    correct = right >= 0.5
    return HeldOut(
        outcomes=len(right),
        brier=float(np.mean((predicted - right) ** 2)),
        auc=float(roc_auc_score(correct, predicted)) if 0 < correct.sum() < len(right) else None,
        calibration_error=float(gap),
    )
