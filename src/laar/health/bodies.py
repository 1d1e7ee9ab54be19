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
from typing import TYPE_CHECKING

from laar.latest import Latest

if TYPE_CHECKING:
    from laar.health.endpoint import Endpoint

DEATHS = 2
"""Endpoints that may see a body in doubt, and deaths after which it is refused."""
LINGER_S = 5.0
"""Seconds within which an engine that a body has broken is found to be gone."""
_LINGER_GOOD_S = 2.0
"""The same for a body that got a good answer: more others did than before one that failed."""
_KEPT_S = 3600.0
"""Seconds for which a death is remembered, counted from the last time that the body was sent."""
_MOST, _MOST_OF_TENANT = 4096, 256
FEW = 2
"""Good answers, beyond the failures, that speak for a body at once; fewer do once it is seen that
the engines live on."""
MOST_SEEN = 4096


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


class Bodies:
    """The bodies in doubt, by digest; nothing to look up while there are none.

    Attributes:
        doubts: those of which no endpoint died yet.
        deadly: those of which one did.
        seen: good answers to the bodies of late, with the time of the last answer, and
            the slot if nobody saw how it ended, else -1.
        slot_of: returns the slot of an endpoint, by its key; -1 if it is not known.
        on_case: called with a digest and its case after each change, to tell other pickers.
    """

    def __init__(self) -> None:
        self.doubts: Latest[int, Case] = Latest(_MOST)
        self.deadly: Latest[int, Case] = Latest(_MOST)
        self.seen: dict[int, tuple[int, int, float]] = {}
        self.slot_of: Callable[[str], int] = lambda _key: -1
        self.on_case: Callable[[int, Case], object] = lambda _digest, _case: None

    def case(self, digest: int, now: float) -> Case | None:
        """Return the case that limits where a body may go; None if there is none."""
        case = self._known(digest)
        if case is None:
            return None
        case.places = {slot: at for slot, at in case.places.items() if now - at <= LINGER_S}
        if case.deaths >= DEATHS and now - case.at <= _KEPT_S:
            case.at = now
            return case
        good = self.seen.get(digest, (0,))[0] - case.failures
        is_past = now - case.at > (_KEPT_S if case.deaths else LINGER_S)
        if is_past or good >= FEW or (good >= 0 and not case.places):
            self._forget(digest)
            return None
        return case

    def sent(self, digest: int, slot: int) -> None:
        """Record that a copy is being sent to a slot."""
        case = self._known(digest)
        if case is not None:
            case.places[slot] = math.inf

    def ended(self, digest: int, slot: int, now: float, *, good: bool) -> None:
        """Record that a copy has ended at a slot, with a good answer or not."""
        if good and self.doubts.pop(digest, None) is not None:
            return
        case = self._known(digest)
        if case is not None:
            case.places = {place: min(at, now) for place, at in case.places.items()}
            if good:
                case.failed_at.pop(slot, None)

    def failed(self, digest: int, tenant: str, slot: int, now: float) -> None:
        """Record that a copy failed where it may have arrived."""
        if not digest:
            return
        case = self._of(digest, tenant, now)
        case.failures += 1
        case.places[slot] = case.failed_at[slot] = now
        self.on_case(digest, case)

    def gone(self, endpoint: Endpoint, now: float) -> None:
        """Record that an endpoint is gone: it refuses connections, or has restarted."""
        if endpoint.is_gone:
            return
        endpoint.is_gone, slot = True, endpoint.slot
        found = {each.digest: each for each in endpoint.attempts if each.digest}
        there = dict.fromkeys(found, "")
        for digest, at, good in endpoint.over:
            if now - at <= (_LINGER_GOOD_S if good else LINGER_S):
                there[digest] = ""
                if good and digest in self.seen:
                    count, last, last_at = self.seen[digest]
                    self.seen[digest] = max(0, count - 1), last, last_at
        endpoint.over.clear()
        for cases in (self.doubts, self.deadly):
            for digest, case in cases.items():
                if now - case.places.get(slot, -math.inf) <= LINGER_S:
                    there[digest] = case.tenant
        for digest, tenant in there.items():
            known = self._known(digest)
            failures = 0 if known is None else known.failures
            if self.seen.get(digest, (0,))[0] >= failures + FEW:
                continue
            attempt = found.get(digest)
            case = self._of(digest, attempt.tenant if attempt is not None else tenant, now)
            case.places.pop(slot, None)
            case.deaths += 1
            case.failures += 1
            for address in () if attempt is None else attempt.repeated_at:
                if (sent_to := self.slot_of(address)) >= 0:
                    case.places.setdefault(sent_to, math.inf)
            self.doubts.pop(digest, None)
            self._keep(digest, case)
            self.on_case(digest, case)

    def heard(self, digest: int, places: list[int], deaths: int, failures: int, now: float) -> None:
        """Apply what another picker says of a body."""
        case = self._of(digest, "", now)
        case.deaths, case.failures = max(case.deaths, deaths), max(case.failures, failures)
        for slot in places:
            case.places[slot] = max(now, case.places.get(slot, now))
        if case.deaths and digest not in self.deadly:
            self.doubts.pop(digest, None)
            self._keep(digest, case)

    def state(self) -> list[tuple[int, int]]:
        """Return the bodies of which endpoints died, and how many, to be saved."""
        return [(digest, case.deaths) for digest, case in self.deadly.items()]

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        for cases in (self.doubts, self.deadly):
            for case in cases.values():
                at = case.places.pop(slot, math.inf)
                case.deaths += case.at - LINGER_S <= at <= case.at  # it had just failed

    def _known(self, digest: int) -> Case | None:
        return self.deadly.get(digest) or self.doubts.get(digest)

    def _of(self, digest: int, tenant: str, now: float) -> Case:
        case = self._known(digest)
        if case is None:
            case = self.doubts[digest] = Case(tenant, now)
        case.at = now
        return case

    def _keep(self, digest: int, case: Case) -> None:
        """Keep a case for long; of a tenant with many, drop the oldest with fewest deaths."""
        own = [(c.deaths, c.at, d) for d, c in self.deadly.items() if c.tenant == case.tenant]
        if len(own) >= _MOST_OF_TENANT and digest not in self.deadly:
            del self.deadly[min(own)[2]]
        self.deadly[digest] = case

    def _forget(self, digest: int) -> None:
        self.doubts.pop(digest, None)
        self.deadly.pop(digest, None)
