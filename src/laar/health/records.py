"""The records of health: endpoints by slot, and families of them by model."""

from __future__ import annotations

from collections.abc import Callable

from laar.health.breaker import SLOW_START_S, Rules, Word
from laar.health.endpoint import Attempt, Family, Member
from laar.health.kinds import GOOD, Kind, Reply, judge
from laar.health.refusals import Refusals
from laar.health.requests import Clients
from laar.latest import Latest

_MAX_TENANTS = 1024


class Records:
    """The records of a fleet.

    Attributes:
        rules: thresholds, and the randomness of trials.
        version: changes when an endpoint's standing changes other than by time.
        endpoints: records by slot.
        families: the endpoints of each model, by model.
        outliers: slots that may stand out; all others are healthy.
        clients: the clients that get useless answers.
        dull_clients: the clients that get short or repeated answers.
        blame: the clients and prompts of requests that fail, by `Asked.traits`.
        refusals: the kinds of requests that an endpoint refuses.
        silences: by tenant, when endpoints were last silent to it, by slot.
        unanswered: by digest, the first attempt in flight of each body that no engine has answered.
        on_word: called with a slot and each message about it, to be sent to the other pickers.
        on_gone: called with the slot of an endpoint that is found dead, and the time.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.version = 0
        self.endpoints: dict[int, Member] = {}
        self.families: dict[str, Family] = {}
        self.outliers: set[int] = set()
        self.clients, self.dull_clients, self.blame = Clients(), Clients(), Clients()
        self.refusals = Refusals()
        self.silences: Latest[str, dict[int, float]] = Latest(_MAX_TENANTS)
        self.unanswered: dict[int, Attempt] = {}
        self.on_word: Callable[[int, Word], object] = lambda _slot, _word: None
        self.on_gone: Callable[[int, float], object] = lambda _slot, _now: None
        self._began_at: float | None = None

    def of(self, slot: int, model: str, now: float) -> Member:
        """Return the record of a slot; start a new endpoint slowly if it joins others."""
        known = self.endpoints.get(slot)
        if known is not None and known.model == model:
            return known
        self.drop(slot)
        family = self.families.setdefault(model, Family())
        made = self.endpoints[slot] = Member(slot, model, family, self.rules)
        if self._began_at is None:
            self._began_at = now
        if family.members and now - self._began_at > SLOW_START_S:
            made.breaker.start_slowly(now)
            self.mark(made)
        family.members[slot] = made
        return made

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        known = self.endpoints.pop(slot, None)
        if known is None:
            return
        for attempt in known.attempts:
            self.unanswered.pop(attempt.digest, None)
        known.attempts.clear()
        self.outliers.discard(slot)
        self.refusals.drop(known)
        del known.family.members[slot]
        known.family.progressed.pop(known, None)
        if not known.family.members:
            del self.families[known.model]
        self.version += 1

    def judge(self, endpoint: Member, reply: Reply, now: float) -> Kind | str | None:
        """Return the verdict on a reply, comparing the model name in it with siblings' answers.

        Return None if the reply says nothing about the endpoint.
        """
        verdict = judge(reply)
        if reply.found is not GOOD:
            return verdict
        endpoint.named = reply.model
        if not reply.model:
            return verdict
        alike = [e.named == reply.model for e in endpoint.others() if e.named is not None]
        if not alike:  # siblings' names are needed first
            endpoint.family.contest(now)
            return None
        return Kind.MODEL if 2 * sum(alike) < len(alike) else GOOD

    def gone(self, endpoint: Member, now: float) -> None:
        """Record that an endpoint refuses connections, or has restarted."""
        if not endpoint.is_gone:
            endpoint.is_gone = True
            self.on_gone(endpoint.slot, now)

    def mark(self, endpoint: Member) -> None:
        """Record that an endpoint may stand out."""
        self.outliers.add(endpoint.slot)
        self.version += 1

    def is_outlier(self, endpoint: Member, now: float) -> bool:
        """Return whether an endpoint that may stand out still does."""
        breaker = endpoint.breaker
        breaker.settle(now)
        if endpoint.doubted or breaker.stands_out(now):
            return True
        self.outliers.discard(endpoint.slot)
        return False

    def say(self, endpoint: Member, what: str, kind: Kind, amount: float) -> None:
        """Send a message to the other pickers."""
        self.on_word(endpoint.slot, Word(what, kind, amount))
