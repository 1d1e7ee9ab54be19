"""Compare what endpoints make of requests of the same client, and of the same kind.

A flawed answer (refused, empty, short, repeated) may be what its client asked for, and a client's
requests follow their prefix to one endpoint. So a client whose requests only one endpoint has seen
is evidence once, however many flawed answers it gets; how other endpoints answer the same client
shows who is at fault.

A prompt that breaks every engine, or a tenant who sends nothing else, must not take down the fleet
either: a failure is blamed on the request if it fails at siblings that have just answered others,
or if requests of the same client or with the same prompt have repeatedly failed there
(`Clients.is_culprit`). If a whole fleet fails, no request is to blame.

An endpoint may also refuse one kind of request that its siblings accept, such as those with tools,
and serve all others. It then gets such a request only if no other endpoint can take it.

All of this is empty, and costs nothing, while nothing is refused or answered badly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from laar.health.recent import WINDOW, Habit, Recent, stands_out
from laar.latest import Latest, Shared

if TYPE_CHECKING:
    from laar.health.endpoint import Endpoint

_MOST_CLIENTS = 1024
"""Of the tenant with most, the one that failed least recently is dropped: a tenant who varies the
prompt adds some with each failure."""
_MOST_KINDS = 1024
_MOST_SLOTS = 8
"""Endpoints remembered for each client, whose requests seldom go to more."""
_REMEMBERED_S = 60.0
_NEARLY_ALL = 0.9
"""Share of refused requests above which an endpoint is assumed to refuse all of a broad kind."""
_FADED = 0.3  # refusals that are too few to matter
_FEWEST = 0.05  # failures at an endpoint that no longer matter
_LEAST = 2.5
"""Failures that make a client a culprit: three, slightly faded."""
_CULPRIT = 1 / 3
"""Minimum share of failures among a culprit's requests: half, minus a margin for chance. Below it,
a tenant's requests are mostly good and must keep their fallbacks."""
_BOTH = (False, True)


class Asked(NamedTuple):
    """What a request has in common with others, as hashes.

    Args:
        kinds: what an engine may refuse it for, all together (its model, form and size), then the
            broader kinds: nothing, and each of its marks alone; only if some kind is refused.
        clients: its session, its tenant and the beginning of its prompt, as far as known; each is
            more specific than the next.
        prompt: hash of its prompt.
        tenant: its tenant.
    """

    kinds: tuple[int, ...] = ()
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


class _Refused(Habit):
    """How often an endpoint refuses a kind of request; it soon gets another one to show."""

    half_life_s = 20.0

    def is_recent(self, now: float) -> bool:
        """Return whether refusals still matter."""
        self.fade(now)
        return self.bad > _FADED


class Refusals:
    """The kinds of requests that some endpoint refuses (4xx) or answers uselessly, and how often.

    What was refused, and what was useless among the answers read, are counted apart.
    """

    def __init__(self) -> None:
        self.kinds: Latest[tuple[str, int, bool], dict[Endpoint, _Refused]] = Latest(_MOST_KINDS)
        """By model, kind, and whether it is about answers that were read."""
        self._clients = Clients()

    def note(self, endpoint: Endpoint, asked: Asked, now: float, *, refused: bool) -> bool | None:
        """Record whether an endpoint refused a request; return what `Clients.flawed` does."""
        is_evidence: bool | None = True
        if not refused:
            self._clients.good(endpoint.slot, asked.clients, now)
        elif not (is_evidence := self._clients.flawed(endpoint.slot, asked, now)):
            return is_evidence
        self.count(endpoint, asked, now, happened=refused)
        return is_evidence

    def count(
        self, endpoint: Endpoint, asked: Asked, now: float, *, happened: bool, read: bool = False
    ) -> None:
        """Count a request, or an answer that was read, in each of its kinds."""
        for kind in asked.kinds:
            key = endpoint.model, kind, read
            habits = self.kinds.get(key)
            if happened:
                habits = self.kinds[key] = habits or {}
            if habits is not None:
                habits.setdefault(endpoint, _Refused()).note(now, happened=happened)

    def refusing(self, models: Iterable[str], kinds: Sequence[int], now: float) -> set[int]:
        """Return the slots of endpoints that fail such requests, unlike their siblings."""
        found: set[int] = set()
        # Also look at the kind that failed least recently, so that all are dropped in time.
        keys = list(islice(self.kinds, 1))
        keys += [(model, kind, read) for model in models for kind in kinds for read in _BOTH]
        for key in keys:
            if not (habits := self.kinds.get(key)):
                continue
            refusers = [(e, own) for e, own in habits.items() if own.is_recent(now)]
            for endpoint, own in refusers:
                if key[1] != kinds[0] and own.bad < _NEARLY_ALL * own.total:
                    continue
                others = [habit for other, habit in habits.items() if other is not endpoint]
                if key[1] in kinds and stands_out(own, others, now):
                    found.add(endpoint.slot)
            if not refusers:
                del self.kinds[key]
        return found

    def doubts(self, model: str, kinds: Iterable[int]) -> bool:
        """Return whether the answers to such requests should be read: some endpoint fails them."""
        found = (self.kinds.get((model, kind, True), {}) for kind in kinds)
        return any(
            own.bad > _FADED and own.bad >= _NEARLY_ALL * own.total
            for habits in found
            for own in habits.values()
        )

    def drop(self, endpoint: Endpoint) -> None:
        """Forget an endpoint that was removed."""
        for habits in self.kinds.values():
            habits.pop(endpoint, None)
