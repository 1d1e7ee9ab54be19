"""Pickers: in which order the scores put the candidates.

The first serves, and the next are the fallbacks that Envoy tries. `max-score` is laar's own. The
others are llm-d's, for policies that come from there.
"""

from __future__ import annotations

import math

from laar.core.endpoints import Floats
from laar.core.interfaces import View
from laar.core.picker import NEAR_TIE, pick
from laar.policies.ranking import least


class MaxScore:
    """The best score. Among near-ties the least loaded, among equals one by chance.

    Args:
        near_tie: share of the best score within which scores count as equal.
    """

    def __init__(self, *, near_tie: float = NEAR_TIE) -> None:
        self._near_tie = near_tie

    def order(self, scores: Floats, view: View) -> list[int]:
        """Best first."""
        return pick(scores, view.queued_tokens, view.rng, near_tie=self._near_tie)


class ShuffledMaxScore:
    """The best score; equals by chance, and only equals. llm-d's `max-score-picker`."""

    def order(self, scores: Floats, view: View) -> list[int]:
        """Best first."""
        return least(-scores, view.rng)


class WeightedRandom:
    """Each candidate with a chance in proportion to its score. llm-d's `weighted-random-picker`.

    Keys `u ** (1 / score)` in descending order (Efraimidis and Spirakis, 2006), in logarithms so
    that small scores keep their order.
    """

    def order(self, scores: Floats, view: View) -> list[int]:
        """Drawn without replacement; a score of zero comes last."""
        keys = [
            math.log(1.0 - view.rng.random()) / score if score > 0.0 else -math.inf
            for score in scores.tolist()
        ]
        draws = [view.rng.random() for _ in keys]
        return sorted(range(len(keys)), key=lambda i: (-keys[i], draws[i]))


class RandomOrder:
    """Any candidate, regardless of its score. llm-d's `random-picker`."""

    def order(self, scores: Floats, view: View) -> list[int]:
        """Shuffled."""
        order = list(range(len(scores)))
        view.rng.shuffle(order)
        return order
