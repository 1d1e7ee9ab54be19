"""Fit how success probabilities change after other models have failed on the same request.

All models share a question's difficulty. Its spread is fitted by maximum likelihood to the
verdicts of several models on the same queries (`laar.accuracy.difficulty`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from laar.accuracy.capability import CapabilityModel
from laar.accuracy.difficulty import MAX_SPREAD, curves, nodes
from laar.accuracy.fitting.outcomes import MeasuredOutcome, by_query, features_of_outcome

_MAX_QUERIES = 20_000  # maximum used to fit the spread
_WORTH_A_SPREAD = 2.0  # gain in log likelihood: chance exceeds it one time in twenty


def fit_difficulty(capability: CapabilityModel, outcomes: Sequence[MeasuredOutcome]) -> float:
    """Return the most likely spread of the difficulty, shrunk towards 0.

    The unconditional probabilities are those of `capability`.
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
    # The minimizer never tries the bounds. If 0 is hardly worse, attempts count as independent.
    return 0.0 if loss(0.0) <= float(found.fun) + _WORTH_A_SPREAD else round(float(found.x), 4)
