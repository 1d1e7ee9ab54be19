"""Advice on hedging: asking a second model before the first has answered.

The client decides, by its own deadline and budget (`laar.client.hedging`). The picker estimates
the time of both attempts and how likely each is right, and returns the estimates on request.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from laar.core.endpoints import Floats, Mask
from laar.core.interfaces import View


class HedgeAdvice(NamedTuple):
    """Figures of this attempt, and of the best one with another model beside it.

    Args:
        p: P(correct) of this attempt.
        seconds: expected seconds of this attempt.
        next_p: P(correct) of the other, given that this one is wrong.
        next_s: expected seconds of the other.
        others_s: seconds that the other attempt costs other requests.
    """

    p: float
    seconds: float
    next_p: float
    next_s: float
    others_s: float


def advice(
    view: View, position: int, probability: Floats, may: Mask | None, left: Mask
) -> HedgeAdvice | None:
    """Return the advice on a decision; None where nothing is priced or no other model is left.

    Args:
        view: the view, priced.
        position: position of the chosen candidate.
        probability: P(correct) of each candidate, given that the chosen one's model fails as well.
        may: the candidates that were left to pick from; None for all.
        left: the candidates whose model is neither the chosen one nor was tried.
    """
    terms = view.terms
    if terms is None:
        return None
    left = left if may is None else left & may
    if not left.any():
        return None
    others_s = np.maximum(terms.all_others_s, 0.0)
    chance = np.maximum(probability * terms.all_answers, 1e-3)
    cost = np.where(left, (terms.latency_s + others_s) / chance, np.inf)
    at = int(cost.argmin())
    return HedgeAdvice(
        p=float(view.probability[position]),
        seconds=float(terms.latency_s[position]),
        next_p=float(probability[at]),
        next_s=float(terms.latency_s[at]),
        others_s=float(others_s[at]),
    )
