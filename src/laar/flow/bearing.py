"""How long clients bear to be held, learned for each kind of client.

A kind is a tenant and what names its sessions, which differs between agents and libraries. A client
that breaks a hold off and asks again has a timeout of its own; one that only breaks off may have
been stopped by its user. As TCP does with its window, the limit rises fast until a client of the
kind first times out, and slowly from then on: by a hundredth for each round of holds that were
borne. It falls so much that about one hold in a hundred meets a timeout. Holds that began before it
last changed say nothing new.

Whether longer holds would have paid shows afterwards. A turn whose hold ended before there was room
is taken to wait on, and the room that is made to go to those who have waited longest. It is no
forecast: if all clients waited for as long, others would have room at other times.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import NamedTuple

from laar.latest import Shared

LEAST_S = 2.0
"""Floor of the limit in seconds, so that what clients bear is still seen."""

_BEGINS, _RISES, _TIMES_OUT, _LEAVES = 1.25, 1.01, 1.01**-99, 1.01**-10
"""Factors on the limit: a hold was borne, before and after the first timeout; a hold timed out, or
was broken off and not repeated."""

_LONG = 0.5
"""Share of the limit from which a hold that was borne says something about it."""

_MAX_KINDS, _MAX_LEFT = 1024, 4096
"""Maximum numbers of kinds and of broken-off requests remembered; the oldest are forgotten."""

_MAX_WAIT_ON, _SERVED = 1024, 256
"""Maximum number of turns that are taken to wait on, and of waits for room that count."""

_MOST = 0.9
"""Share of the turns for which a wait is to be long enough."""


class ClientKind(NamedTuple):
    """Clients that probably bear the same: of a tenant, with sessions named alike."""

    tenant: str
    named_by: str
    patience_s: float | None


class Hold(NamedTuple):
    """A hold.

    Args:
        kind: the client's kind.
        digest: the hash of the body; 0 if unknown.
        since: when it began.
        limit_s: how long it may last.
        session: the turn's session, or its own id.
        reach: the endpoints that it may go to, one bit each.
    """

    kind: ClientKind
    digest: int
    since: float
    limit_s: float
    session: str = ""
    reach: int = -1


class _Limit(NamedTuple):
    """The limit of a kind, and when a timeout last lowered it."""

    limit_s: float
    lowered_at: float = -math.inf


class Bearing:
    """Learns how long kinds of clients bear to be held.

    Attributes:
        ended: number of holds so far, by what ended them: `room`, their `limit`, or the client,
            which `left`; those that it `repeated` had probably met its timeout.
    """

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter(room=0, limit=0, left=0, repeated=0)
        self._waits_on: Shared[str, Hold] = Shared(_MAX_WAIT_ON, lambda _, of: of.kind.tenant)
        self._served_s: deque[float] = deque(maxlen=_SERVED)
        self._kinds: Shared[ClientKind, _Limit] = Shared(_MAX_KINDS, lambda of, _: of.tenant)
        self._left: Shared[tuple[ClientKind, int], tuple[float, float]] = Shared(
            _MAX_LEFT, lambda of, _: of[0].tenant
        )
        """When requests that were broken off had begun to wait, and for how long they did."""

    def limit_s(self, kind: ClientKind, first_s: float, most_s: float) -> float:
        """Return how long to hold a client, at most `most_s`; `first_s` if its kind is new."""
        known = self._kinds.get(kind)
        return min(first_s if known is None else known.limit_s, most_s)

    def begins(self, hold: Hold) -> float:
        """Return the limit of a hold; its client may have broken it off before, and asked again."""
        since, held_s = self._left.pop((hold.kind, hold.digest), (-math.inf, math.inf))
        known = self._kinds.get(hold.kind, _Limit(hold.limit_s))
        if held_s < math.inf:
            self.ended["repeated"] += 1
        if held_s < math.inf and since >= known.lowered_at:
            limit_s = min(known.limit_s, max(min(LEAST_S, hold.limit_s), held_s * _TIMES_OUT))
            known = self._kinds[hold.kind] = _Limit(limit_s, hold.since)
        return min(known.limit_s, hold.limit_s)

    def ends(self, hold: Hold, now: float, *, has_room: bool) -> None:
        """Handle the end of a hold, at its limit unless the turn `has_room`."""
        self.ended["room" if has_room else "limit"] += 1
        waits_on = self._waits_on
        if has_room:
            others = (each for each in waits_on.values() if each.reach & hold.reach)
            first = min((hold, *others), key=lambda each: each.since)
            self._served_s.append(now - first.since)
            if first.session == hold.session:
                waits_on.pop(hold.session, None)
                return
            del waits_on[first.session]
        if hold.session not in waits_on:
            waits_on[hold.session] = hold

    def enough_s(self, now: float) -> float:
        """Return the wait after which nine of ten of the latest turns would have had room."""
        waits_s = sorted([*self._served_s, *(now - each.since for each in self._waits_on.values())])
        return waits_s[min(int(_MOST * len(waits_s)), len(waits_s) - 1)] if waits_s else 0.0

    def borne(self, hold: Hold, until: float) -> None:
        """Handle a hold that ended, `until` then, before its client gave up."""
        known = self._kinds.get(hold.kind, _Limit(hold.limit_s))
        if hold.since >= known.lowered_at and until - hold.since >= _LONG * hold.limit_s > 0.0:
            limit_s = hold.limit_s * (_RISES if known.lowered_at > -math.inf else _BEGINS)
            self._kinds[hold.kind] = known._replace(limit_s=max(known.limit_s, limit_s))

    def left(self, hold: Hold, now: float) -> None:
        """Handle a hold that its client broke off."""
        self.ended["left"] += 1
        known = self._kinds.get(hold.kind, _Limit(hold.limit_s))
        if hold.since >= known.lowered_at:
            limit_s = max(min(LEAST_S, hold.limit_s), hold.limit_s * _LEAVES)
            self._kinds[hold.kind] = known._replace(limit_s=min(known.limit_s, limit_s))
            if hold.digest:
                self._left[hold.kind, hold.digest] = hold.since, now - hold.since
