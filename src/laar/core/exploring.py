"""Exploration: a few requests go where the cost is poorly known instead of where it is lowest.

A model whose accuracy is poorly known might never be chosen, so no report would ever correct the
estimate. Where outcomes are reported, a random sample of requests goes to the cheapest candidate
whose model has few outcomes, measured or reported, in the request's class. Candidates that take
much longer are skipped.

An endpoint that has seldom answered might be far faster than it seems, which is mostly how fast its
model's other endpoints are. If it is idle and has not been chosen for a while, and if it might be
the cheapest, it gets a request: until ten answers have shown its pace, or ten such requests or
forty others have not.
It is rather one that leaves no cache behind. What such requests are expected to cost in addition is
limited to a tenth of the cost of all.

Retries and requests with an objective are exempt, and endpoints in trouble are never tried.
"""

from __future__ import annotations

import numpy as np

from laar.core.endpoints import Floats, Mask
from laar.core.interfaces import View
from laar.health import Standing

EXPLORE = "explore"
"""Reason code of requests to a model whose accuracy is poorly known."""

TRY = "try"
"""Reason code of requests to an endpoint whose pace is poorly known."""

EXPLORE_SHARE = 0.01
"""Share of eligible requests that explore: enough for an estimate to recover within a day, too few
to affect the mean noticeably."""

ENOUGH_OUTCOMES = 30.0
"""Number of outcomes that make a model known: as many as the fit needs to trust a cell."""

SLOWER = 2.0
"""Largest accepted latency, relative to that of the best choice."""

WAITS, WAITS_LONG = 8.0, 64.0
"""Decisions for which an endpoint was not chosen before it is tried: with any request, and with one
that leaves most of its prompt cached elsewhere, as conversations do."""

TRY_SHARE, MOST_SAVED = 0.1, 4.0
"""What tries may cost in addition: the share of each request's cost, and how many costs of a
request may be saved for a try. Four suffice for an endpoint five times as slow as the best."""


class Explorer:
    """Chooses the requests that explore."""

    def __init__(self) -> None:
        self._saved, self._saved_at = MOST_SAVED, 0  # costs of a request; number of a decision

    def choose(
        self, view: View, standing: Standing, may: Mask | None, scores: Floats
    ) -> tuple[int | None, str]:
        """Return the candidate for this request to explore, and the reason; mostly None.

        Args:
            view: the view, with costs set.
            standing: the candidates' health.
            may: the eligible candidates; None means all.
            scores: scores of the candidates.
        """
        request, terms, table = view.request, view.terms, view.table
        if request.shadow or request.tried or request.objective or terms is None:
            return None, ""
        if request.companion_of:
            return None, ""
        if request.ttft_objective_s is not None or view.tpot_objective_s is not None:
            return None, ""
        if view.reported is not None and (at := _to_explore(view, may, scores)) is not None:
            return at, EXPLORE
        if terms.outlook is None:
            return None, ""
        likely, possible = terms.outlook
        cost_s, well = terms.cost_s, None
        if standing.answers is not None:
            well = standing.answers >= 1.0
            if standing.new is not None:  # it starts slowly, but not because it failed
                well |= standing.new
                cost_s = np.where(standing.new, cost_s * standing.answers, cost_s)
        best = int(scores.argmax()) if may is None else _best_of(may, scores)
        least_s = max(cost_s.item(best), 1e-12)
        can = cost_s * possible < least_s * possible.item(best)
        if not np.count_nonzero(can):
            return None, ""
        waited = table.decisions - table.chosen[view.slots]
        can &= (waited >= WAITS) & (view.in_flight == 0.0)
        if not np.count_nonzero(can):
            return None, ""
        if well is not None:
            can &= well
        if may is not None:
            can &= may
        for seconds in terms.added.values():  # what a plug-in adds says nothing of the pace
            can &= seconds == 0.0
        leaves = view.cached_tokens.item(best) - view.cached_tokens > 0.5 * view.tokens
        can &= ~leaves | (waited >= WAITS_LONG)
        extra = np.maximum(cost_s * likely / least_s - 1.0, 0.0)
        saved = self._saved + TRY_SHARE * (table.decisions - self._saved_at)
        can &= extra <= min(saved, MOST_SAVED)
        can[best] = False
        if not np.count_nonzero(can):
            return None, ""
        return _best_of(can, -cost_s * possible), TRY

    def tried(self, view: View, at: int) -> None:
        """Record that a request tries a candidate."""
        assert view.terms is not None
        assert view.terms.outlook is not None
        assert view.engines is not None
        cost_s, decisions = view.terms.cost_s, view.table.decisions
        extra = cost_s.item(at) * view.terms.outlook[0].item(at) / max(cost_s.min(), 1e-12) - 1.0
        saved = min(self._saved + TRY_SHARE * (decisions - self._saved_at), MOST_SAVED)
        self._saved, self._saved_at = saved - max(extra, 0.0), decisions
        view.engines.paces.tries[view.slots.item(at)] += 1.0


def _to_explore(view: View, may: Mask | None, scores: Floats) -> int | None:
    """Return the candidate whose accuracy to explore."""
    assert view.terms is not None
    assert view.reported is not None
    if view.terms.probability is not view.probability:  # this policy ignores reports
        return None
    best = int(scores.argmax()) if may is None else _best_of(may, scores)
    model_id = view.model_id
    others = model_id != model_id[best]
    if not np.count_nonzero(others):
        return None
    fine = view.terms.latency_s <= SLOWER * view.terms.latency_s[best]
    thin = (view.evidence + view.reported < ENOUGH_OUTCOMES) & fine & others
    if may is not None:
        thin &= may
    if not thin.any() or view.rng.random() >= EXPLORE_SHARE:
        return None
    return _best_of(thin, scores)


def _best_of(mask: Mask, scores: Floats) -> int:
    """Return the position of the best score within a mask, which must not be empty."""
    kept = mask.nonzero()[0]
    return int(kept[scores[kept].argmax()])
