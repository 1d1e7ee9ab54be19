"""Random and round-robin: the policies of a load balancer without information."""

from __future__ import annotations

import numpy as np

from laar.core.endpoints import Floats
from laar.core.interfaces import View


class Random:
    """Any candidate, each as likely."""

    def score(self, view: View) -> Floats:
        """Return one for a candidate drawn by chance, zero for the rest."""
        scores = np.zeros(len(view.slots))
        scores[view.rng.randrange(len(scores))] = 1.0
        return scores


class RoundRobin:
    """The candidates in turn.

    The turn is a slot, not a position: a filter that hides an endpoint for one request does not
    make the others jump the queue.
    """

    def __init__(self) -> None:
        self._last = -1

    def score(self, view: View) -> Floats:
        """Return one for the first candidate after the last one served, zero for the rest."""
        position = int(np.searchsorted(view.slots, self._last, side="right")) % len(view.slots)
        self._last = int(view.slots[position])
        scores = np.zeros(len(view.slots))
        scores[position] = 1.0
        return scores
