"""The retry rule and the stop, for every policy.

Attempts in ascending order of L / P(correct | what failed) take all but the least expected time to
the first correct answer, also where failures are not independent (held against every order of five
models by a test). So the next attempt's cost says what a correct answer still takes, and the stop
is that cost against the answer's value: no plan of the whole sequence is needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laar.core.cost import MIN_PROBABILITY, Terms
from laar.core.endpoints import Floats

__all__ = ["less_tried_first", "next_cost_s"]

_LEAST = 1e-6  # above every score of a candidate that was tried more often


def less_tried_first(scores: Floats, times_tried: Floats) -> Floats:
    """Scores in which a candidate whose model was tried less often beats all others."""
    least = times_tried == times_tried.min()
    return np.where(least, np.maximum(scores, _LEAST), scores * _LEAST * 1e-3)


def next_cost_s(terms: Terms, probability: Floats, left: NDArray[np.bool_]) -> float:
    """Expected seconds to a correct answer once this attempt has failed too.

    Args:
        terms: of this attempt's candidates: their latencies are taken for those of the next one.
        probability: of each candidate, given that this attempt failed as well.
        left: whose models are untried then; with none of them the answer is 0: who could be asked
            is not there just now, so nothing speaks for stopping.
    """
    if not left.any():
        return 0.0
    chance = np.maximum(probability[left], MIN_PROBABILITY)
    return float((terms.latency_s[left] / chance).min())
