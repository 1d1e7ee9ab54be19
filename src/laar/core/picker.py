"""The max-score picker, with near-ties, and the order of the fallbacks behind it."""

from __future__ import annotations

import random

import numpy as np

from laar.core.endpoints import Floats

__all__ = ["NEAR_TIE", "pick"]

NEAR_TIE = 0.01
"""Scores within this share of the best count as equal. A plain argmin sends every request of a
burst to one endpoint, because readings move slower than requests arrive (seen by GORGO's authors
and by llm-d's users)."""


def pick(scores: Floats, load: Floats, rng: random.Random) -> list[int]:
    """Positions of the candidates, the picked one first, the rest by score.

    Among the near-ties of the best score the least loaded is picked, and among equals chance
    decides.
    """
    ranked = np.argsort(-scores, kind="stable")
    order: list[int] = ranked.tolist()
    best = float(scores[order[0]])
    near = int(np.count_nonzero(scores >= best - NEAR_TIE * abs(best)))
    if near > 1:
        loads = load[ranked[:near]]
        idle = np.flatnonzero(loads == loads.min())
        order.insert(0, order.pop(int(idle[rng.randrange(len(idle))])))
    return order
