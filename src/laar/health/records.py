"""The records that health is made of: endpoints by slot, groups of them by model."""

from __future__ import annotations

import random
from collections.abc import Iterable

from laar.health.attempt import Attempt
from laar.health.blame import Blame
from laar.health.breaker import SLOW_START_S
from laar.health.endpoint import Endpoint
from laar.health.kinds import GOOD, Kind, Reply, judge
from laar.health.pace import GroupTimes
from laar.health.settings import HealthSettings

_MAX_GROUPS = 4096
_CONTESTED_S = 5.0


class Records:
    """The records of a fleet.

    Attributes:
        settings: thresholds.
        rng: spreads trials.
        version: changes when an endpoint's standing does, other than by time.
        endpoints: records by slot.
        siblings: slots by model.
        groups: usual times, by model and whether the answer is streamed.
        troubled: slots that may stand out; all others are sound.
        paced: models whose endpoints have new times.
        blame: the requests that fail wherever they go.
        contested: models of which an endpoint gave a useless answer, and until when its siblings
            are read to compare.
    """

    def __init__(self, settings: HealthSettings, rng: random.Random) -> None:
        self.settings = settings
        self.rng = rng
        self.version = 0
        self.endpoints: dict[int, Endpoint] = {}
        self.siblings: dict[str, set[int]] = {}
        self.groups: dict[tuple[str, bool], GroupTimes] = {}
        self.troubled: set[int] = set()
        self.paced: set[str] = set()
        self.blame = Blame()
        self.contested: dict[str, float] = {}
        self._began_at: float | None = None

    def know(self, slot: int, model: str, now: float) -> Endpoint:
        """The record of a slot; a new one starts slowly where others have been there for long."""
        known = self.endpoints.get(slot)
        if known is not None and known.model == model:
            return known
        if known is not None:
            self.drop(slot)
        made = self.endpoints[slot] = Endpoint(model)
        if self._began_at is None:
            self._began_at = now
        siblings = self.siblings.setdefault(model, set())
        if siblings and now - self._began_at > SLOW_START_S:
            made.breaker.start_slowly(now)
            self.trouble(slot)
        siblings.add(slot)
        return made

    def drop(self, slot: int) -> None:
        """Forgets a slot: its endpoint left."""
        known = self.endpoints.pop(slot, None)
        if known is None:
            return
        self.troubled.discard(slot)
        siblings = self.siblings[known.model]
        siblings.discard(slot)
        if not siblings:
            del self.siblings[known.model]
            self.paced.discard(known.model)
            self.contested.pop(known.model, None)
            for stream in (False, True):
                self.groups.pop((known.model, stream), None)
        self.version += 1

    def others(self, endpoint: Endpoint) -> Iterable[Endpoint]:
        """The other endpoints with the same model."""
        for slot in self.siblings.get(endpoint.model, ()):
            other = self.endpoints[slot]
            if other is not endpoint:
                yield other

    def times(self, attempt: Attempt) -> GroupTimes:
        """The usual times of an attempt's group."""
        group = self.groups.get(attempt.group)
        if group is None:
            if len(self.groups) >= _MAX_GROUPS:
                self.groups.clear()
            group = self.groups[attempt.group] = GroupTimes()
        return group

    def judge(self, endpoint: Endpoint, reply: Reply, now: float) -> Kind | str | None:
        """The verdict on a reply; an answer's name for its model is held against siblings' names.

        None for an answer that shows nothing about its endpoint.
        """
        verdict = judge(reply)
        if reply.found is not GOOD:
            return verdict
        endpoint.named = reply.model
        if not reply.model:
            return verdict
        alike = [e.named == reply.model for e in self.others(endpoint) if e.named is not None]
        if not alike:  # siblings have to be heard first
            self.contest(endpoint, now)
            return None
        return Kind.MODEL if 2 * sum(alike) < len(alike) else GOOD

    def contest(self, endpoint: Endpoint, now: float) -> None:
        """Has siblings' answers read, to compare with."""
        self.contested[endpoint.model] = now + _CONTESTED_S

    def is_missed(self, endpoint: Endpoint, now: float) -> bool:
        """Whether a sibling is waiting to be compared with it, and too little of it was read."""
        until = self.contested.get(endpoint.model)
        if until is None:
            return False
        if until < now:
            del self.contested[endpoint.model]
            return False
        return not (endpoint.useless.is_evidence(now) and endpoint.cut.is_evidence(now))

    def trouble(self, slot: int) -> None:
        """Notes that a slot may stand out."""
        self.troubled.add(slot)
        self.version += 1
