"""Compare what endpoints make of requests of the same client.

A flawed answer (refused, empty, short, repeated) may be what its client asked for, and a client's
requests follow their prefix to one endpoint. So a client whose requests only one endpoint has seen
is evidence once, however many flawed answers it gets; how other endpoints answer the same client
shows who is at fault.

A prompt that breaks every engine, or a tenant who sends nothing else, must not take down the fleet
either: a failure is blamed on the request if it fails at siblings that have just answered others,
or if requests of the same client or with the same prompt have repeatedly failed there
(`Clients.is_culprit`). If a whole fleet fails, no request is to blame.

This is empty, and costs nothing, while nothing is refused or answered badly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import NamedTuple

from laar.health.recent import WINDOW, Recent
from laar.latest import Latest, Shared

_MOST_CLIENTS = 1024
"""Of the tenant with most, the one that failed least recently is dropped: a tenant who varies the
prompt adds some with each failure."""
_MOST_SLOTS = 8
"""Endpoints remembered for each client, whose requests seldom go to more."""
_REMEMBERED_S = 60.0
_FEWEST = 0.05  # failures at an endpoint that no longer matter
_LEAST = 2.5
"""Failures that make a client a culprit: three, slightly faded."""
_CULPRIT = 1 / 3
"""Minimum share of failures among a culprit's requests: half, minus a margin for chance. Below it,
a tenant's requests are mostly good and must keep their fallbacks."""


class Asked(NamedTuple):
    """What a request has in common with others, as hashes.

    Args:
        marks: a bit mask of what an engine may refuse it for (`laar.core.attempts.marks_of`).
        clients: its session, its tenant and the beginning of its prompt, as far as known; each is
            more specific than the next.
    """

    marks: int = 0
    clients: tuple[int, ...] = ()
    prompt: int = 0
    tenant: str = ""

    @property
    def traits(self) -> tuple[int, ...]:
        """What requests that fail everywhere may share; all without a name share one more."""
        nameless = () if self.tenant or len(self.clients) > 1 else (_NAMELESS,)
        return *self.clients, self.prompt, *nameless


NOTHING = Asked()
_NAMELESS = hash("nameless")


class _Client:
    """Recent good and flawed answers to one client, by slot."""

    __slots__ = ("at", "slots", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.at = float("-inf")
        self.slots: Latest[int, Recent] = Latest(_MOST_SLOTS)

    def add(self, slot: int, now: float, *, good: float = 0.0, bad: float = 0.0) -> None:
        self.at = now if bad else self.at
        recent = self.slots[slot] = self.slots.get(slot) or Recent()
        recent.add(now, good=good, bad=bad)
        scale = WINDOW / max(WINDOW, self.total(now))
        for recent in self.slots.values():
            recent.good *= scale
            recent.bad *= scale

    def total(self, now: float) -> float:
        """Return the weight of all answers."""
        for recent in self.slots.values():
            recent.fade(now)
        return sum(recent.total for recent in self.slots.values())


class Clients:
    """The clients that got a flawed answer recently, and how endpoints answer them."""

    def __init__(self) -> None:
        self.known: Shared[int, _Client] = Shared(_MOST_CLIENTS, lambda _, of: of.tenant)

    def good(self, slot: int, keys: Iterable[int], now: float, count: float = 1.0) -> None:
        """Record a good answer, if its client got a flawed one recently; -1 retracts it."""
        if not self.known:
            return
        for key in keys:
            if (client := self.known.get(key)) is not None:
                client.add(slot, now, good=count)
        # Also look at the one that got a flawed answer first, so that all are dropped in time.
        for key in (*islice(self.known, 1), *keys):
            client = self.known.get(key)
            if client is not None and now - client.at > _REMEMBERED_S:
                del self.known[key]

    def bad(self, slots: Collection[int], keys: Iterable[int], tenant: str, now: float) -> None:
        """Record a request that failed at these endpoints."""
        for key in keys:
            client = self.known[key] = self.known.get(key) or _Client(tenant)
            for slot in slots:
                client.add(slot, now, bad=1.0 / len(slots))

    def flawed(self, slot: int, asked: Asked, now: float) -> bool | None:
        """Record a flawed answer; return whether it is evidence against its endpoint.

        It is evidence if other endpoints mostly answer this client well, or if the client has asked
        no other yet. Return None if no other endpoint has answered this client since.
        """
        is_known, others, better = False, 0, 0.0
        for key in asked.clients:
            client = self.known.get(key)
            if client is None or now - client.at > _REMEMBERED_S:
                self.known.pop(key, None)
            elif not is_known:
                is_known = True
                for at, recent in client.slots.items():
                    if at != slot:
                        others += 1
                        better += recent.good - recent.bad
        self.bad((slot,), asked.clients, asked.tenant, now)
        if not others:
            return None if is_known else True
        return better > 0.0

    def is_culprit(self, keys: Iterable[int], now: float) -> bool:
        """Return whether requests with one of these keys often fail at several endpoints.

        Failures at one endpoint may be its own fault, as prompts with the same beginning go there.
        """
        for key in keys:
            if (client := self.known.get(key)) is not None:
                total = client.total(now)
                bad = [recent.bad for recent in client.slots.values() if recent.bad > _FEWEST]
                if len(bad) > 1 and sum(bad) >= max(_LEAST, _CULPRIT * total):
                    return True
        return False
