"""Find the kinds of requests that an endpoint refuses, or answers uselessly, unlike its siblings.

A kind is what some of its refused requests have in common and its accepted ones have not: marks,
or their absence, together. Nothing lists kinds. A request is a bit mask of its marks
(`laar.core.attempts.marks_of`), the latest requests to each endpoint are kept, and each refusal is
generalized: what it does not share with another is left out, as long as the rest is refused no
less often. An endpoint that so refuses a kind, which its siblings accept, gets such a request only
if no other endpoint can take it.

All of this is empty, and costs nothing, while nothing is refused or answered badly.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import count, islice
from typing import TYPE_CHECKING, NamedTuple

from laar.health.recent import is_unusual, likelihood
from laar.health.requests import Asked, Clients
from laar.latest import Latest, Shared

if TYPE_CHECKING:
    from laar.health.endpoint import Member

_MOST_ENDPOINTS = 512
_MOST_GOOD, _MOST_BAD, _MOST_KINDS = 48, 24, 8
_MOST_SIBLINGS = 32
_REMEMBERED_S = 60.0
_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 240.0
"""Seconds until an endpoint gets a request of a kind again, twice as long each time it refuses."""
_LEARN_EVERY_S = 0.01
"""Minimum seconds between generalizations, which take half a millisecond."""
_LOOKS = 4  # refusals that a request is compared with


class _Kind(NamedTuple):
    """Requests that have some marks and lack others."""

    has: int
    lacks: int = 0

    def covers(self, marks: int) -> bool:
        """Return whether a request with these marks is one."""
        return marks & self.has == self.has and not marks & self.lacks


class _Seen:
    """The latest requests to an endpoint (time, marks, tenant), and the kinds that it refuses."""

    def __init__(self) -> None:
        self.good, self.bad = (
            Shared[int, tuple[float, int, str]](most, lambda _, request: request[2])
            for most in (_MOST_GOOD, _MOST_BAD)
        )
        self.kinds = Shared[_Kind, tuple[float, float, str]](
            _MOST_KINDS, lambda _, paused: paused[2]
        )
        """Until when the endpoint gets none of a kind, the pause in seconds, who was refused."""

    def counts(self, kind: _Kind) -> tuple[int, int]:
        """Return how many requests of a kind were refused, and accepted since the first was."""
        bad = [at for at, marks, _ in self.bad.values() if kind.covers(marks)]
        since = bad[0] if bad else 0.0
        return len(bad), sum(at >= since and kind.covers(m) for at, m, _ in self.good.values())

    def generalized(self, marks: int) -> _Kind:
        """Return the widest kind, of which the request with these marks is one, that is refused."""
        once = twice = often = 0
        for _, good, _ in self.good.values():
            once, twice, often = once | good, twice | once & good, often | twice & good
        kind = _Kind(marks, often & ~marks)
        refused = [other for _, other, _ in self.bad.values()]
        for other in sorted(refused, key=lambda other: -(marks & other).bit_count()):
            wider = _Kind(kind.has & other, kind.lacks & ~other)
            if likelihood(*self.counts(wider)) >= likelihood(*self.counts(kind)):
                kind = wider
        wider = _Kind(kind.has)
        return wider if likelihood(*self.counts(wider)) >= likelihood(*self.counts(kind)) else kind

    def pause(self, kind: _Kind, now: float, tenant: str) -> float:
        """Let the endpoint get none of a kind for a while; return until when."""
        pause_s = min(max(_PAUSE_S, 2.0 * self.kinds.get(kind, (0.0, 0.0))[1]), _LONGEST_PAUSE_S)
        self.kinds[kind] = now + pause_s, pause_s, tenant
        return now + pause_s

    def forget(self, now: float) -> None:
        """Forget what is too old to matter."""
        for table in (self.good, self.bad):
            while table and table[first := next(iter(table))][0] < now - _REMEMBERED_S:
                del table[first]


class Refusals:
    """The kinds of requests that some endpoint refuses (4xx) or answers uselessly.

    What was refused, and what was useless among the answers read, are kept apart.
    """

    def __init__(self) -> None:
        self.seen: Latest[tuple[Member, bool], _Seen] = Latest(_MOST_ENDPOINTS)
        """By endpoint, and whether it is about answers that were read."""
        self._clients = Clients()
        self._numbers = count()
        self._learned_at = self._until = float("-inf")

    def note(self, endpoint: Member, asked: Asked, now: float, *, refused: bool) -> bool | None:
        """Record whether an endpoint refused a request; return what `Clients.flawed` does."""
        is_evidence: bool | None = True
        if not refused:
            self._clients.good(endpoint.slot, asked.clients, now)
        elif not (is_evidence := self._clients.flawed(endpoint.slot, asked, now)):
            return is_evidence
        self.count(endpoint, asked, now, happened=refused)
        return is_evidence

    def count(
        self, endpoint: Member, asked: Asked, now: float, *, happened: bool, read: bool = False
    ) -> None:
        """Record a request, or an answer that was read."""
        if happened:
            self._until = max(self._until, now + _REMEMBERED_S)
        elif now > self._until:
            self.seen.clear()
            return
        key, marks = (endpoint, read), asked.marks
        seen = self.seen[key] = self.seen.get(key) or _Seen()
        seen.forget(now)
        if not marks:  # nothing was refused yet when it was read
            return
        (seen.bad if happened else seen.good)[next(self._numbers)] = now, marks, asked.tenant
        known = [kind for kind in seen.kinds if kind.covers(marks)]
        if not happened:
            for kind in known:
                if not self._stands_out(endpoint, read, kind):
                    del seen.kinds[kind]
        elif not known and now - self._learned_at >= _LEARN_EVERY_S:
            self._learned_at = now
            kind = seen.generalized(marks)
            known = [kind] if self._stands_out(endpoint, read, kind) else []
        for kind in known if happened else ():
            if seen.kinds.get(kind, (now,))[0] <= now:
                self._until = max(self._until, seen.pause(kind, now, asked.tenant) + _REMEMBERED_S)

    def _stands_out(self, endpoint: Member, read: bool, kind: _Kind) -> bool:
        """Return whether an endpoint refuses a kind of request that its siblings accept."""
        siblings = (self.seen.get((other, read)) for other in endpoint.others())
        others = [seen.counts(kind) for seen in islice(filter(None, siblings), _MOST_SIBLINGS)]
        return is_unusual(self.seen[endpoint, read].counts(kind), others)

    def refusing(self, models: Collection[str], marks: int, now: float) -> set[int]:
        """Return the slots of endpoints that fail such requests, unlike their siblings."""
        return {
            endpoint.slot
            for (endpoint, _), seen in self.seen.items()
            for kind, (until, *_) in seen.kinds.items()
            if until > now and kind.covers(marks) and endpoint.model in models
        }

    def explains(self, endpoint: Member, marks: int) -> bool:
        """Return whether a useless answer is of a kind, and its endpoint answers others well."""
        seen = self.seen.get((endpoint, True))
        return seen is not None and any(
            kind.covers(marks) and not all(kind.covers(good) for _, good, _ in seen.good.values())
            for kind in seen.kinds
        )

    def doubts(self, model: str, marks: int) -> bool:
        """Return whether the answer to such a request should be read, as some endpoint fails some.

        It should if it shares with a useless answer's request what no useful one's had.
        """
        return any(
            not any(shared & ~good == 0 for _, good, _ in seen.good.values())
            for (endpoint, read), seen in self.seen.items()
            if read and seen.bad and endpoint.model == model
            for shared in [bad & marks for _, bad, _ in islice(reversed(seen.bad.values()), _LOOKS)]
        )

    def drop(self, endpoint: Member) -> None:
        """Forget an endpoint that was removed."""
        for read in (False, True):
            self.seen.pop((endpoint, read), None)
