"""Bodies that may kill engines: each may kill two, whatever is done to repeat it.

A body is in *doubt* for some seconds after it failed where it may have arrived, or was given up
unanswered: engines report a death late, or not at all. Its copies reach one more endpoint, one
attempt each; then they are held to these two. An endpoint is *gone* if it refuses connections or
has restarted. That is blamed on all bodies that were there: a first time they stay in doubt, and
the second time they are refused. Others in flight at a dying endpoint are thus still answered.
Nothing else is a death: a machine without CPU time is silent, too, and so is whoever watches it.

Good answers speak for a body: one that is usual, such as a check's, is in flight wherever an
engine dies. Failures at an endpoint that failed before, or never worked, speak against that one.

Copies that are sent at once can't be called back. So until a body is answered for the first time,
its copies share the two endpoints of the first one: 16 of them, and two endpoints more for each
16 beyond, so that no client waits long for room.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from laar.core.decision import Completion, Decision
from laar.core.plugin import Admitted, Core, Part, Plugin, Reach
from laar.errors import RequestError
from laar.fleet.endpoints import Mask, Slots
from laar.fleet.membership import key_of
from laar.health.health import FEW
from laar.latest import Shared
from laar.request import Request
from laar.untrusted import Count, valid

DEATHS = 2
"""Endpoints that may see a body in doubt, and deaths after which it is refused."""
LINGER_S = 5.0
"""Seconds within which an engine that a body has broken is found to be gone."""
_BREAKS_S = 1.0
"""The same for an endpoint that is known to fail without it."""
_LINGER_GOOD_S = 2.0
"""The same for a body that got a good answer: more others did than before one that failed."""
_KEPT_S = 3600.0
"""Seconds for which a death is remembered, counted from the last time that the body was sent."""
_MOST = 4096
_TOGETHER = 16
"""Copies of a body without an answer for each `DEATHS` endpoints."""


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
        copies: those sent since the case began.
        excused: slots that failed, but had failed before or never worked.
    """

    tenant: str
    at: float
    places: dict[int, float] = field(default_factory=dict)
    failed_at: dict[int, float] = field(default_factory=dict)
    deaths: int = 0
    failures: int = 0
    copies: int = 0
    excused: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Together(Part):
    """The slots where copies of a body that nobody has answered yet are."""

    places: list[int]


class DeadlyBodies(Plugin):
    """The bodies in doubt; nothing to look up while there are none.

    Attributes:
        cases: what is known of them, by digest.
        on_case: called with a digest and its case after each change, to tell other pickers.
    """

    name = "deadly"

    def __init__(self) -> None:
        self.cases: Shared[int, Case] = Shared(_MOST, lambda _, case: case.tenant)
        self.on_case: Callable[[int, Case], object] = lambda _digest, _case: None

    def join(self, core: Core) -> None:
        """Keep the table, and health's records of what was where."""
        self._table, self._health, self._wary = core.table, core.health, core.plugins.wary
        core.plugins.bodies = core.health.unanswered

    # -- requests ------------------------------------------------------------------------------

    def admit(self, request: Request, now: float) -> Admitted | None:
        """Limit where a body in doubt may go.

        Raises:
            RequestError: 502 if it has killed enough endpoints.
        """
        for digest in list(islice(self.cases, 1)):
            self.case(digest, now, asked=False)  # so that all are forgotten in time
        digest, by_slot, health = request.digest, self._table.by_slot, self._health
        case = None if request.shadow else self.case(digest, now)
        if case is None and digest in health.unanswered and not request.shadow:
            first = health.unanswered[digest]
            case = self._of(digest, request.tenant, now)
            self._sent(case, first.endpoint.slot, first.repeated_at)
        if case is None:
            return None
        failed_at = case.failed_at
        places = [
            slot
            for slot in case.places
            if slot in by_slot
            and not (
                slot in case.excused
                and health.fails(slot, failed_at.get(slot, math.inf), _BREAKS_S)
            )
        ]
        most = DEATHS if case.failures else DEATHS * (1 + case.copies // _TOGETHER)
        reach = Reach(
            frozenset(by_slot[slot].address for slot in places), most - case.deaths - len(places)
        )
        if reach.more > 0:
            return Admitted(reach=reach)
        if not case.failures:
            return Admitted(reach=reach, part=_Together(places))
        if case.deaths >= DEATHS:
            raise RequestError(
                502,
                "kills-engines",
                f"{DEATHS} endpoints died when they got this body; it is not sent to others",
            )
        stays = request.response_id or request.conversation_id or request.subset is not None
        return Admitted(reach=reach, subset=None if stays else reach.places)

    def keep(self, request: Request, part: _Together, slots: Slots, now: float) -> Mask:
        """Keep the endpoints where copies are."""
        return np.isin(slots, part.places)

    def reserve(self, decision: Decision, now: float) -> None:
        """Record that a copy is being sent to its endpoint."""
        case = self.cases.get(decision.request.digest)
        if case is not None and not decision.request.shadow:
            case.copies += 1
            if case.failures:
                case.places[decision.flight.slot] = math.inf
            else:
                case.at = now
                self._sent(case, decision.flight.slot, decision.fallbacks[:1])

    def move(self, decision: Decision, now: float) -> None:
        """Record that a copy has been sent to the endpoint that serves it."""
        self.reserve(decision, now)

    def complete(self, decision: Decision, end: Completion) -> None:
        """Record that a copy has ended, with a good answer or not."""
        digest = decision.request.digest
        case, now = self.cases.get(digest), decision.now + end.latency_s
        if case is None:
            return
        good = end.cause == "complete" and end.status is not None and end.status < 500
        if good and not case.deaths:
            self._forget(digest)
            return
        case.places = {place: min(at, now) for place, at in case.places.items()}
        if good:
            case.failed_at.pop(decision.flight.slot, None)

    def failed(self, decision: Decision, slot: int, now: float) -> None:
        """Record that a copy failed where it may have arrived."""
        digest, tenant = decision.request.digest, decision.request.tenant
        good, last, at, _ = self._health.seen.get(digest, (0, slot, now, False))
        if last >= 0 and not good and now - at <= LINGER_S and not self._health.lives(last, at):
            # Nobody saw whether the answer that it gave was cut off.
            self._failed(digest, tenant, last, now)
        self._failed(digest, tenant, slot, now)
        endpoint = self._health.records.endpoints.get(slot)
        if slot in (decision.left_out or ()) or (endpoint and not endpoint.proved_at):
            self._of(digest, tenant, now).excused.add(slot)

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
                    count, last, last_at, survived = seen[digest]
                    seen[digest] = max(0, count - 1), last, last_at, survived
        endpoint.over.clear()
        for digest, case in self.cases.items():
            if now - case.places.get(slot, -math.inf) <= LINGER_S:
                there[digest] = case.tenant
        for digest, tenant in there.items():
            known = self.cases.get(digest)
            failures = 0 if known is None else known.failures
            if seen.get(digest, (0,))[0] >= failures + FEW:
                continue
            attempt = found.get(digest)
            case = self._of(digest, tenant if attempt is None else attempt.tenant, now)
            case.deaths += 1
            case.failures += 1
            if attempt is not None:
                self._sent(case, slot, attempt.repeated_at)
            case.places.pop(slot, None)
            self.on_case(digest, case)

    def leave(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        for case in self.cases.values():
            at = case.places.pop(slot, math.inf)
            case.deaths += case.at - LINGER_S <= at <= case.at  # it had just failed

    # -- other pickers -------------------------------------------------------------------------

    def heard(self, digest: int, places: list[int], deaths: int, failures: int, now: float) -> None:
        """Apply what another picker says of a body."""
        case = self._of(digest, "", now)
        case.deaths, case.failures = max(case.deaths, deaths), max(case.failures, failures)
        for slot in places:
            case.places[slot] = max(now, case.places.get(slot, now))

    def save(self) -> object:
        """Return the bodies of which endpoints died, and how many."""
        return [(digest, case.deaths) for digest, case in self.cases.items() if case.deaths]

    def restore(self, saved: object) -> None:
        """Restore a result of `save`; their time begins when they are next looked at."""
        for digest, deaths in islice(valid(saved, tuple[Count, Count]), _MOST):
            self.heard(digest, [], deaths, deaths, math.inf)

    # -- cases ---------------------------------------------------------------------------------

    def case(self, digest: int, now: float, *, asked: bool = True) -> Case | None:
        """Return the case that limits where a body may go, if it is `asked`; None if none does."""
        case = self.cases.get(digest)
        if case is None:
            return None
        case.at = min(case.at, now)
        runs_at = {slot for slot in case.places if self._runs(digest, slot)}
        case.places = {
            slot: at for slot, at in case.places.items() if slot in runs_at or now - at <= LINGER_S
        }
        if case.deaths >= DEATHS and now - case.at <= _KEPT_S:
            case.at = now if asked else case.at
            return case
        good = self._health.seen.get(digest, (0,))[0] - case.failures
        is_past = now - case.at > (_KEPT_S if case.deaths else LINGER_S)
        if (is_past and not runs_at) or good >= FEW or (good >= 0 and not case.places):
            self._forget(digest)
            return None
        return case

    def _runs(self, digest: int, slot: int) -> bool:
        endpoint = self._health.records.endpoints.get(slot)
        return endpoint is not None and any(each.digest == digest for each in endpoint.attempts)

    def _sent(self, case: Case, slot: int, repeated_at: tuple[str, ...]) -> None:
        """Note where a copy is, and where Envoy will repeat it."""
        spec = self._table.by_slot.get(slot)  # None if the endpoint has left
        rank = None if spec is None else spec.rank
        case.places[slot] = math.inf
        for address in repeated_at:
            if (sent_to := self._table.slot(key_of(address, rank))) >= 0:
                case.places.setdefault(sent_to, math.inf)

    def _of(self, digest: int, tenant: str, now: float) -> Case:
        case = self.cases.get(digest)
        if case is None:
            case = self.cases[digest] = Case(tenant, now)
            self._wary.add(self)
        case.at = now
        return case

    def _forget(self, digest: int) -> None:
        del self.cases[digest]
        if not self.cases:
            self._wary.discard(self)
