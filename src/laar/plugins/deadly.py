"""Bodies that may kill engines: each may kill two, whatever is done to repeat it.

A body is in *doubt* for some seconds after it failed where it may have arrived, or was given up
unanswered: engines report a death late, or not at all. Its copies reach one more endpoint, one
attempt each; then they are held to these two. An endpoint is *gone* if it refuses connections or
has restarted. That is blamed on all bodies that were there: a first time they stay in doubt, and
the second time they are refused. Others in flight at a dying endpoint are thus still answered.

Good answers speak for a body: one that is usual, such as a check's, is in flight wherever an
engine dies. Copies that were sent before the first failure is known can't be called back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from laar.core.decision import Completion, Decision
from laar.core.plugin import Admitted, Core, Plugin, Reach
from laar.errors import RequestError
from laar.health.health import FEW
from laar.latest import Latest
from laar.request import Request
from laar.untrusted import Count, valid

DEATHS = 2
"""Endpoints that may see a body in doubt, and deaths after which it is refused."""
LINGER_S = 5.0
"""Seconds within which an engine that a body has broken is found to be gone."""
_LINGER_GOOD_S = 2.0
"""The same for a body that got a good answer: more others did than before one that failed."""
_KEPT_S = 3600.0
"""Seconds for which a death is remembered, counted from the last time that the body was sent."""
_MOST, _MOST_OF_TENANT = 4096, 256


@dataclass(slots=True)
class Case:
    """What is known about a body in doubt.

    Args:
        tenant: who sent it.
        at: when it last failed, or was refused.
        places: the slots where it may have done harm, until when; infinity while in flight.
        failed_at: those that failed, and when.
        deaths: endpoints that died of it.
        failures: deaths, and failures of endpoints that may be alive.
    """

    tenant: str
    at: float
    places: dict[int, float] = field(default_factory=dict)
    failed_at: dict[int, float] = field(default_factory=dict)
    deaths: int = 0
    failures: int = 0


class DeadlyBodies(Plugin):
    """The bodies in doubt, by digest; nothing to look up while there are none.

    Attributes:
        doubts: those of which no endpoint died yet.
        deadly: those of which one did.
        on_case: called with a digest and its case after each change, to tell other pickers.
    """

    name = "deadly"

    def __init__(self) -> None:
        self.doubts: Latest[int, Case] = Latest(_MOST)
        self.deadly: Latest[int, Case] = Latest(_MOST)
        self.on_case: Callable[[int, Case], object] = lambda _digest, _case: None

    def join(self, core: Core) -> None:
        """Keep the table, and health's records of what was where."""
        self._table, self._health, self._wary = core.table, core.health, core.plugins.wary

    # -- requests ------------------------------------------------------------------------------

    def admit(self, request: Request, now: float) -> Admitted | None:
        """Limit where a body in doubt may go.

        Raises:
            RequestError: 502 if it has killed or failed enough endpoints.
        """
        for digest in (*islice(self.doubts, 1), *islice(self.deadly, 1)):
            self.case(digest, now, asked=False)  # so that all are forgotten in time
        case = None if request.shadow else self.case(request.digest, now)
        if case is None:
            return None
        by_slot, failed_at = self._table.by_slot, case.failed_at
        reach = Reach(
            frozenset(by_slot[slot].address for slot in case.places if slot in by_slot),
            DEATHS - case.deaths - len(case.places),
        )
        if reach.more > 0:
            return Admitted(reach=reach)
        left = frozenset(
            by_slot[slot].address
            for slot in case.places
            if self._health.lives(slot, failed_at.get(slot, -math.inf))
        )
        if case.deaths >= DEATHS or not left:
            raise RequestError(
                502,
                "kills-engines",
                f"{DEATHS} endpoints failed when they got this body; it is not sent to others",
            )
        stays = request.response_id or request.conversation_id or request.subset is not None
        return Admitted(reach=reach, subset=None if stays else left)

    def reserve(self, decision: Decision, now: float) -> None:
        """Record that a copy is being sent to its endpoint."""
        case = self._known(decision.request.digest)
        if case is not None and not decision.request.shadow:
            case.places[decision.flight.slot] = math.inf

    def move(self, decision: Decision, now: float) -> None:
        """Record that a copy has been sent to the endpoint that serves it."""
        self.reserve(decision, now)

    def complete(self, decision: Decision, end: Completion) -> None:
        """Record that a copy has ended, with a good answer or not."""
        digest = decision.request.digest
        case, now = self._known(digest), decision.now + end.latency_s
        if case is None:
            return
        good = end.cause == "complete" and end.status is not None and end.status < 500
        if good and self.doubts.pop(digest, None) is not None:
            self._look()
            return
        case.places = {place: min(at, now) for place, at in case.places.items()}
        if good:
            case.failed_at.pop(decision.flight.slot, None)

    def failed(self, decision: Decision, slot: int, now: float) -> None:
        """Record that a copy failed where it may have arrived."""
        digest, tenant = decision.request.digest, decision.request.tenant
        good, last, at = self._health.seen.get(digest, (0, slot, now))
        if last >= 0 and not good and now - at <= LINGER_S and not self._health.lives(last, at):
            # Nobody saw whether the answer that it gave was cut off.
            self._failed(digest, tenant, last, now)
        self._failed(digest, tenant, slot, now)

    def _failed(self, digest: int, tenant: str, slot: int, now: float) -> None:
        case = self._of(digest, tenant, now)
        case.failures += 1
        case.places[slot] = case.failed_at[slot] = now
        self.on_case(digest, case)

    # -- endpoints -----------------------------------------------------------------------------

    def gone(self, slot: int, now: float) -> None:
        """Blame the bodies that were at an endpoint which is gone, unless they are usual."""
        endpoint, seen = self._health.records.endpoints[slot], self._health.seen
        found = {each.digest: each for each in endpoint.attempts if each.digest}
        there = dict.fromkeys(found, "")
        for digest, at, good in endpoint.over:
            if now - at <= (_LINGER_GOOD_S if good else LINGER_S):
                there[digest] = ""
                if good and digest in seen:
                    count, last, last_at = seen[digest]
                    seen[digest] = max(0, count - 1), last, last_at
        endpoint.over.clear()
        for cases in (self.doubts, self.deadly):
            for digest, case in cases.items():
                if now - case.places.get(slot, -math.inf) <= LINGER_S:
                    there[digest] = case.tenant
        for digest, tenant in there.items():
            known = self._known(digest)
            failures = 0 if known is None else known.failures
            if seen.get(digest, (0,))[0] >= failures + FEW:
                continue
            attempt = found.get(digest)
            case = self._of(digest, tenant if attempt is None else attempt.tenant, now)
            case.places.pop(slot, None)
            case.deaths += 1
            case.failures += 1
            for address in () if attempt is None else attempt.repeated_at:
                if (sent_to := self._table.slot(address)) >= 0:
                    case.places.setdefault(sent_to, math.inf)
            self._keep(digest, case)
            self.on_case(digest, case)

    def leave(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        for cases in (self.doubts, self.deadly):
            for case in cases.values():
                at = case.places.pop(slot, math.inf)
                case.deaths += case.at - LINGER_S <= at <= case.at  # it had just failed

    # -- other pickers -------------------------------------------------------------------------

    def heard(self, digest: int, places: list[int], deaths: int, failures: int, now: float) -> None:
        """Apply what another picker says of a body."""
        case = self._of(digest, "", now)
        case.deaths, case.failures = max(case.deaths, deaths), max(case.failures, failures)
        for slot in places:
            case.places[slot] = max(now, case.places.get(slot, now))
        if case.deaths and digest not in self.deadly:
            self._keep(digest, case)

    def save(self) -> object:
        """Return the bodies of which endpoints died, and how many."""
        return [(digest, case.deaths) for digest, case in self.deadly.items()]

    def restore(self, saved: object) -> None:
        """Restore a result of `save`; their time begins when they are next looked at."""
        for digest, deaths in islice(valid(saved, tuple[Count, Count]), _MOST):
            self.heard(digest, [], deaths, deaths, math.inf)

    # -- cases ---------------------------------------------------------------------------------

    def case(self, digest: int, now: float, *, asked: bool = True) -> Case | None:
        """Return the case that limits where a body may go, if it is `asked`; None if none does."""
        case = self._known(digest)
        if case is None:
            return None
        case.at = min(case.at, now)
        case.places = {slot: at for slot, at in case.places.items() if now - at <= LINGER_S}
        if case.deaths >= DEATHS and now - case.at <= _KEPT_S:
            case.at = now if asked else case.at
            return case
        good = self._health.seen.get(digest, (0,))[0] - case.failures
        is_past = now - case.at > (_KEPT_S if case.deaths else LINGER_S)
        if is_past or good >= FEW or (good >= 0 and not case.places):
            self.doubts.pop(digest, None)
            self.deadly.pop(digest, None)
            self._look()
            return None
        return case

    def _known(self, digest: int) -> Case | None:
        return self.deadly.get(digest) or self.doubts.get(digest)

    def _of(self, digest: int, tenant: str, now: float) -> Case:
        case = self._known(digest)
        if case is None:
            case = self.doubts[digest] = Case(tenant, now)
            self._look()
        case.at = now
        return case

    def _keep(self, digest: int, case: Case) -> None:
        """Keep a case for long; of a tenant with many, drop the oldest with fewest deaths."""
        self.doubts.pop(digest, None)
        own = [(c.deaths, c.at, d) for d, c in self.deadly.items() if c.tenant == case.tenant]
        if len(own) >= _MOST_OF_TENANT and digest not in self.deadly:
            del self.deadly[min(own)[2]]
        self.deadly[digest] = case

    def _look(self) -> None:
        """Be asked about all requests while there are cases."""
        if self.doubts or self.deadly:
            self._wary.add(self)
        else:
            self._wary.discard(self)
