"""Exploration: a small share of requests goes to a model whose accuracy is poorly known.

A model with a poor estimate in the artifact, or without one, might never be chosen, so no report
would ever correct the estimate. Where outcomes are reported, a random sample of requests goes to
the cheapest candidate whose model has few outcomes, measured or reported, in the request's class.
Retries and requests with an objective are exempt; candidates that take much longer are skipped.
"""

from __future__ import annotations

import numpy as np

from laar.core.endpoints import Floats, Mask
from laar.core.interfaces import View

EXPLORE = "explore"
"""Reason code of exploratory decisions."""

EXPLORE_SHARE = 0.01
"""Share of eligible requests that explore: enough for an estimate to recover within a day, too few
to affect the mean noticeably."""

ENOUGH_OUTCOMES = 30.0
"""Number of outcomes that make a model known: as many as the fit needs to trust a cell."""

SLOWER = 2.0
"""Largest accepted latency, relative to that of the best choice."""


def to_explore(view: View, may: Mask | None, scores: Floats) -> int | None:
    """Return the candidate for this request to explore; None for nearly all requests.

    Args:
        view: the view, with costs set.
        may: the eligible candidates; None means all.
        scores: scores of the candidates.
    """
    request, reported = view.request, view.reported
    if reported is None or view.terms is None or request.shadow:
        return None
    if view.terms.probability is not view.probability:  # this policy ignores reports
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
    """Return the position of the best score within a mask, which must not be empty."""
    kept = mask.nonzero()[0]
    return int(kept[scores[kept].argmax()])
