"""Exploration: a small share of requests goes to a model whose accuracy is hardly known.

A model that an artifact measured badly, or not at all, may never be asked again, and then no report
ever corrects it. So where outcomes are being reported, a draw sends a request to the cheapest
candidate whose model has few outcomes of this kind, the artifact's and the reported ones together.
Never a retry, nor a request with an objective, nor where the answer would take much longer.
"""

from __future__ import annotations

import numpy as np

from laar.core.endpoints import Floats, Mask
from laar.core.interfaces import View

EXPLORE = "explore"
"""The reason of a decision that explores."""

EXPLORE_SHARE = 0.01
"""Share of the requests that could explore and do: enough for an estimate to recover in a day, and
too few to be noticed in the mean."""

ENOUGH_OUTCOMES = 30.0
"""Outcomes from which a model counts as known; the fit trusts a cell from as many."""

SLOWER = 2.0
"""How much longer than the best choice it may take."""


def to_explore(view: View, may: Mask | None, scores: Floats) -> int | None:
    """Return the candidate that this request is to explore; None for nearly all requests.

    Args:
        view: priced.
        may: the candidates that are left to pick from; None for all.
        scores: scores of the candidates.
    """
    request, reported = view.request, view.reported
    if reported is None or view.terms is None or request.shadow:
        return None
    if view.terms.probability is not view.probability:  # reports change nothing of this policy
        return None
    if request.tried or request.objective or request.ttft_objective_s is not None:
        return None
    best = int(scores.argmax()) if may is None else _best_of(may, scores)
    model_id = view.table.model_id[view.slots]
    others = model_id != model_id[best]
    if not np.count_nonzero(others):
        return None
    fine = view.terms.latency_s <= SLOWER * view.terms.latency_s[best]
    thin = (view.evidence + reported < ENOUGH_OUTCOMES) & fine & others
    if may is not None:
        thin &= may
    if not thin.any() or view.rng.random() >= EXPLORE_SHARE:
        return None
    return _best_of(thin, scores)


def _best_of(mask: Mask, scores: Floats) -> int:
    """Return the position with the best score among those that a mask keeps, at least one."""
    kept = mask.nonzero()[0]
    return int(kept[scores[kept].argmax()])
