"""The party at fault: the endpoint, or the request that every endpoint fails.

A prompt that breaks each engine, or a tenant who sends nothing else, must not take the fleet out.
An endpoint's failure is the request's where its siblings fail that request too, or have failed
those like it again and again: of the same tenant or session, or with the same prompt or its
beginning. Each of these is a trait, and has its own record, from its first failure on.

Nothing is excused where an endpoint has not proved in the last seconds that it answers others: the
failures of a fleet that fails as a whole are its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from laar.health.recent import Recent

_MOST = 1024
"""Traits remembered; those longest unseen make room. A tenant who varies the prompt makes a new one
with each request, and refreshes its own."""
_LEAST = 2.5
"""Failures that make a trait a culprit: three, faded a little."""
_CULPRIT = 1 / 3
"""Share of failures from which a trait is a culprit: half of the requests, less chance. A tenant
with less sends good requests in the main, which must keep their fallbacks."""


class _Record(Recent):
    """The outcomes of the requests with a trait, and the first endpoint that failed one."""

    def __init__(self, slot: int) -> None:
        super().__init__()
        self.slot = slot
        self.several = False


class Blame:
    """The records of traits. It is empty, and costs nothing, while no request fails everywhere."""

    def __init__(self) -> None:
        self.records: OrderedDict[int, _Record] = OrderedDict()
        """Records by trait."""

    def good(self, traits: Iterable[int], now: float, count: float = 1.0) -> None:
        """Record that a request with these traits was answered; -1 takes one back."""
        for trait in traits:
            record = self.records.get(trait)
            if record is None:
                continue
            record.add(now, good=max(count, -record.good))
            if record.good > 4.0 * record.bad:
                del self.records[trait]

    def bad(self, traits: Iterable[int], slots: Collection[int], now: float) -> None:
        """Record that these endpoints, each known to be sound, failed a request."""
        for trait in traits:
            record = self.records.get(trait)
            if record is None:
                record = self.records[trait] = _Record(next(iter(slots)))
                if len(self.records) > _MOST:
                    self.records.popitem(last=False)
            self.records.move_to_end(trait)
            record.several = record.several or any(slot != record.slot for slot in slots)
            record.add(now, bad=1.0)

    def is_culprit(self, traits: Iterable[int], now: float) -> bool:
        """Return whether requests with one of these traits nearly always fail, at any endpoint.

        Failures at one alone may be its own: prompts that begin alike go to one endpoint.
        """
        for trait in traits:
            record = self.records.get(trait)
            if record is not None and record.several:
                record.fade(now)
                if record.bad >= _LEAST and record.bad >= _CULPRIT * (record.good + record.bad):
                    return True
        return False
