"""Pickers: the order of the candidates by their scores.

The first serves, the next are the fallbacks for Envoy. `max-score` is laar's own. The others are
llm-d's, for policies taken from llm-d. `ranks` preserves a policy's own order and tie-breaking
(random, in most other projects) under `max-score`, which breaks near-ties by load.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from laar.core.interfaces import View
from laar.core.picker import NEAR_TIE, pick
from laar.fleet.endpoints import Floats


class MaxScore:
    """Best score first. Near-ties go to the least loaded, at random if several are.

    Args:
        near_tie: share of the best score within which scores are treated as equal.
    """

    def __init__(self, *, near_tie: float = NEAR_TIE) -> None:
        self._near_tie = near_tie

    def order(self, scores: Floats, view: View) -> list[int]:
        """Return the positions, best first."""
        return pick(scores, view.queued_tokens, view.rng, near_tie=self._near_tie)


class ShuffledMaxScore:
    """Best score first; only exact ties are broken at random. llm-d's `max-score-picker`."""

    def order(self, scores: Floats, view: View) -> list[int]:
        """Return the positions, best first."""
        return least(-scores, view.rng)


class WeightedRandom:
    """Random order, with chances proportional to the scores. llm-d's `weighted-random-picker`.

    Sorts by keys `u ** (1 / score)`, descending (Efraimidis and Spirakis, 2006), as negative
    logarithms so that small scores keep their order.
    """

    def order(self, scores: Floats, view: View) -> list[int]:
        """Sample without replacement; scores of zero come last."""
        keys = [
            -math.log(1.0 - view.rng.random()) / score if score > 0.0 else math.inf
            for score in scores.tolist()
        ]
        return least(keys, view.rng)


def ranks(order: Sequence[int]) -> Floats:
    """Return scores of candidates given best first: 1, 1/2, 1/3 ..., so that none are near-ties."""
    scores: Floats = np.empty(len(order))
    scores[np.asarray(order, np.intp)] = 1.0 / np.arange(1, len(order) + 1)
    return scores


def least(values: Floats | Sequence[float], rng: random.Random) -> list[int]:
    """Return positions by ascending value, with equals in random order."""
    draws = [rng.random() for _ in values]
    return sorted(range(len(draws)), key=lambda i: (values[i], draws[i]))
