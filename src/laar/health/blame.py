"""Decide who is at fault: the endpoint, or a request that fails at every endpoint.

A prompt that breaks every engine, or a tenant who sends nothing else, must not take down the fleet.
A failure is blamed on the request if it fails at sibling endpoints too, or if similar requests have
repeatedly failed there: those of the same tenant or session, or with the same prompt or beginning.
Each of these properties is a trait, recorded from its first failure on.

Nothing is excused unless the endpoint has recently proved that it answers other requests. If a
whole fleet fails, the requests are not to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from laar.health.recent import Recent
from laar.latest import Shared

_MOST = 1024
"""Maximum number of traits remembered; of the tenant with most, the one that failed least recently
is dropped. A tenant who varies the prompt creates traits with each failure."""
_LEAST = 2.5
"""Failures that make a trait a culprit: three, slightly faded."""
_CULPRIT = 1 / 3
"""Minimum share of failures among a culprit's requests: half, minus a margin for chance. Below it,
a tenant's requests are mostly good and must keep their fallbacks."""
_FADED = 0.05  # failures that no longer matter, as one failure does after two minutes


class _Record(Recent):
    """The outcomes of the requests with a trait, and the endpoint where the first failed."""

    def __init__(self, slot: int, tenant: str) -> None:
        super().__init__()
        self.slot = slot
        self.tenant = tenant
        self.several = False


class Blame:
    """The records of traits; empty, and without cost, while no request fails everywhere."""

    def __init__(self) -> None:
        self.records: Shared[int, _Record] = Shared(_MOST, lambda _, of: of.tenant)
        """Records by trait."""

    def good(self, traits: Collection[int], now: float, count: float = 1.0) -> None:
        """Record that a request with these traits was answered; a `count` of -1 retracts it."""
        # Also look at the trait that failed least recently, so that all are dropped in time.
        for trait in {*traits, *islice(self.records, 1)}:
            if record := self.records.get(trait):
                record.add(now, good=count if trait in traits else 0.0)
                if record.good > 4.0 * record.bad or record.bad < _FADED:
                    del self.records[trait]

    def bad(
        self, traits: Iterable[int], slots: Collection[int], now: float, tenant: str = ""
    ) -> None:
        """Record that a request failed at these endpoints, which are all known to be healthy."""
        for trait in traits:
            record = self.records.get(trait) or _Record(next(iter(slots)), tenant)
            self.records[trait] = record
            record.several = record.several or any(slot != record.slot for slot in slots)
            record.add(now, bad=1.0)

    def is_culprit(self, traits: Iterable[int], now: float) -> bool:
        """Return whether requests with one of these traits often fail at several endpoints.

        Failures at one endpoint may be its own fault, as prompts with the same beginning go there.
        """
        for trait in traits:
            record = self.records.get(trait)
            if record is not None and record.several:
                record.fade(now)
                if record.bad >= _LEAST and record.bad >= _CULPRIT * (record.good + record.bad):
                    return True
        return False
