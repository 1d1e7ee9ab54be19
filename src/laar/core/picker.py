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


def pick(scores: Floats, load: Floats, rng: random.Random, *, ranked: int) -> list[int]:
    """Positions of the best `ranked` candidates, best first.

    Among the near-ties of the best score the least loaded comes first, and among equals chance
    decides; behind them the rest follows by score.
    """
    best = float(scores.max())
    near = np.flatnonzero(scores >= best * (1.0 - NEAR_TIE) if best > 0 else scores >= best)
    if len(near) == 1:
        first = int(near[0])
    else:
        idle = near[load[near] == load[near].min()]
        first = int(idle[0]) if len(idle) == 1 else int(idle[rng.randrange(len(idle))])
    if ranked <= 1 or len(scores) == 1:
        return [first]
    order = np.argsort(-scores, kind="stable")
    return [first, *(int(i) for i in order if i != first)][:ranked]
