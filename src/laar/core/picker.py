"""The max-score picker with near-ties, and the order of the fallbacks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from laar.fleet.endpoints import Floats, Mask, Slots

NEAR_TIE = 0.01
"""Scores within this share of the best are treated as equal. A plain argmin sends all requests of a
burst to one endpoint, because readings change more slowly than requests arrive (observed by
GORGO's authors and by llm-d's users)."""


def ranking(scores: Floats, masks: Sequence[Mask] = ()) -> Slots:
    """Return positions ordered by mask, then by score.

    Args:
        scores: scores of the candidates.
        masks: masks of candidates to prefer, the most important first.
    """
    return np.lexsort((-scores, *(~mask for mask in reversed(masks))))


def pick(
    scores: Floats,
    load: Floats,
    rng: random.Random,
    masks: Sequence[Mask] = (),
    *,
    first: int | None = None,
    near_tie: float = NEAR_TIE,
) -> list[int]:
    """Return positions of the candidates: the picked one, then the others as `ranking` orders them.

    Among near-ties with the best score the least loaded is picked; ties in load are broken at
    random.

    Args:
        scores: scores of the candidates.
        load: load of the candidates, in any unit.
        rng: breaks ties.
        masks: as for `ranking`.
        first: a candidate to pick regardless of its score; None to pick by score.
        near_tie: share of the best score within which scores are treated as equal.
    """
    ranked = ranking(scores, masks) if masks else (-scores).argsort(kind="stable")
    order: list[int] = ranked.tolist()
    if first is not None:
        order.remove(first)
        return [first, *order]
    best = scores.item(order[0])
    close = scores >= best - near_tie * abs(best)
    for mask in masks:
        close &= mask == mask[order[0]]
    near = int(np.count_nonzero(close))
    if near > 1:
        loads = load[ranked[:near]]
        idle = (loads == np.minimum.reduce(loads)).nonzero()[0]
        order.insert(0, order.pop(int(idle[rng.randrange(len(idle))])))
    return order
