"""Trying: a few requests go to an endpoint whose pace is not known.

An endpoint that has seldom answered might be far faster than it seems, which is mostly how fast its
model's other endpoints are. If it is idle and has not been chosen for a while, if it might be the
cheapest, and if no other picker has probably just sent it a request, it gets one: until ten answers
have shown its pace, or ten such requests or forty others have not. It is rather one that leaves no
cache behind. What they are expected to cost in addition is limited to a tenth of the cost of all.

Retries and requests with an objective are exempt, and endpoints in trouble are never tried.
"""

from __future__ import annotations

import numpy as np

from laar.core.candidates import Group
from laar.core.decision import Decision
from laar.core.interfaces import View
from laar.core.plugin import Answering, Core, Part, Plugin
from laar.fleet.endpoints import Floats, Mask, Slots
from laar.health import Standing

WAITS_LITTLE, WAITS, WAITS_LONG = 3.0, 8.0, 64.0
"""Decisions for which an endpoint was not chosen before it is tried: if it is likely to be the
cheapest, with any request, and with one that leaves most of its prompt cached elsewhere, as
conversations do."""

SHARE, MOST_SAVED = 0.1, 4.0
"""What tries may cost in addition: the share of each request's cost, and how many costs of a
request may be saved for a try. Four suffice for an endpoint five times as slow as the best."""

_SELDOM = 1 / 60  # requests per second; an endpoint's owner may get none if it has fewer


class Try(Part):
    """A request that tries an endpoint.

    Args:
        extra: what that is expected to cost in addition, in costs of a request.
    """

    def __init__(self, extra: float) -> None:
        self.extra = extra


class Trying(Plugin):
    """Chooses the requests that try an endpoint."""

    name = "try"

    def __init__(self) -> None:
        self._saved, self._saved_at = MOST_SAVED, 0  # costs of a request; number of a decision

    def join(self, core: Core) -> None:
        """Keep the table and the engines."""
        self._table, self._engines = core.table, core.engines

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Take part while the pace of a candidate is not known."""
        return None if self._engines.paces.outlook(group.slots) is None else Part()

    def pick(
        self, view: View, standing: Standing, may: Mask | None, scores: Floats
    ) -> tuple[int, Part] | None:
        """Return the candidate to try; mostly None."""
        request, terms, table = view.request, view.terms, self._table
        if request.shadow or request.tried or request.objective or request.companion_of:
            return None
        outlook = self._engines.paces.outlook(view.slots)
        if request.ttft_objective_s is not None or terms is None or outlook is None:
            return None
        likely, possible = outlook
        cost_s, well = terms.cost_s, None
        if standing.answers is not None:
            well = standing.answers >= 1.0
            if standing.new is not None:  # it starts slowly, but not because it failed
                well |= standing.new
                cost_s = np.where(standing.new, cost_s * standing.answers, cost_s)
        if view.wrong_s is not None:  # a faster pace leaves the price of a wrong answer
            timed = np.minimum(terms.latency_s / np.maximum(cost_s, 1e-12), 1.0)
            likely, possible = (1.0 - timed * (1.0 - paces) for paces in (likely, possible))
        best = int((scores if may is None else np.where(may, scores, -1.0)).argmax())
        least_s = max(cost_s.item(best), 1e-12)
        can = cost_s * possible < least_s * possible.item(best)
        if not np.count_nonzero(can):
            return None
        waited = table.decisions - table.chosen[view.slots]
        leaves = view.cached_tokens.item(best) - view.cached_tokens > 0.5 * view.tokens
        waits = np.where(cost_s * likely < least_s, WAITS_LITTLE, WAITS)
        can &= (waited >= np.where(leaves, WAITS_LONG, waits)) & (view.in_flight == 0.0)
        for mask in (well, may):
            if mask is not None:
                can &= mask
        for seconds in terms.added.values():  # what a plug-in adds says nothing of the pace
            can &= seconds == 0.0
        if table.unseen is not None:  # else several would try it at once
            rates = self._engines.traffic.rates(view.slots, view.now)
            can &= (table.unseen[view.slots] < 0.5) | (rates < _SELDOM)
        extra = np.maximum(cost_s * likely / least_s - 1.0, 0.0)
        can &= extra <= self._saved_by(table.decisions)
        can[best] = False
        if not np.count_nonzero(can):
            return None
        at = int(np.where(can, cost_s * possible, np.inf).argmin())
        return at, Try(extra.item(at))

    def reserve(self, decision: Decision, now: float) -> None:
        """Pay for a try."""
        if (part := Try.among(decision.parts)) is not None:
            before = self._table.decisions - 1  # this one is counted
            self._saved, self._saved_at = self._saved_by(before) - part.extra, before
            self._engines.paces.tries[decision.slot] += 1.0

    def why(self, decision: Decision) -> str:
        """Say that the endpoint is tried."""
        if self not in decision.parts:
            return ""
        return "was tried: it is idle, has seldom answered, and might be the fastest"

    def _saved_by(self, decisions: int) -> float:
        return min(self._saved + SHARE * (decisions - self._saved_at), MOST_SAVED)
