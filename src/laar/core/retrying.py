"""The retry rule and the stop, for every policy.

Attempts in ascending order of L / P(correct | failures) take all but the least expected time to
the first correct answer, also where failures are not independent (a test compares every order of
five models). So the next attempt's cost is the time that a correct answer still takes, and the stop
compares that cost with the answer's value: no plan of the whole sequence is needed.
"""

from __future__ import annotations

import numpy as np

from laar.core.cost import MIN_PROBABILITY, Terms
from laar.core.eligible import Eligible
from laar.core.endpoints import Floats, Mask


def least_tried(times_tried: Floats, able: Eligible | None) -> Mask:
    """Return the candidates whose model was tried least, of those that can take the request."""
    least: Mask = times_tried == (times_tried if able is None else times_tried[able.may]).min()
    return least


def next_cost_s(terms: Terms, probability: Floats, left: Mask) -> float:
    """Expected seconds to a correct answer once this attempt has failed too.

    Args:
        terms: terms of this attempt's candidates: their latencies stand for those of the next one.
        probability: P(correct) of each candidate, given that this attempt failed as well.
        left: candidates whose models are untried then. With none the result is 0: an endpoint to
            ask is missing just now, which is no reason to stop.
    """
    if not left.any():
        return 0.0
    chance = np.maximum(probability[left], MIN_PROBABILITY)
    return float((terms.latency_s[left] / chance).min())
