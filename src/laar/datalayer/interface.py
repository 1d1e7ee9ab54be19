"""The interfaces of collectors: five small protocols, no table and no metrics.

A collector is an object with ``async def run(self) -> None`` that ends only by cancellation. It
knows only the protocol of its sink, so the runner, the lab and the tests can pass any. All calls
are made on the event loop and must return at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from laar.core.endpoints import Reading
from laar.core.membership import EndpointSpec, Served

if TYPE_CHECKING:
    from laar.prefix.tokens import Stored

Clock = Callable[[], float]
"""Monotonic seconds."""

GONE = ""
"""The message for a source that is no longer watched, such as a removed endpoint."""

Targets = Callable[[], Sequence[EndpointSpec]]
"""Return the endpoints to visit now; called repeatedly, so it follows the table."""


class ProblemSink(Protocol):
    """Receives the collectors' problems, for the page, the log and a counter."""

    def problem(self, source: str, message: str | None) -> None:
        """Note that `source` has a problem, once per failure; None or `GONE` ends it.

        `source` is the collector's kind, followed by a blank and the instance if there are
        several: ``scrape 10.0.0.7:8000``. None may be passed for a source without a problem.
        """


class EndpointSink(ProblemSink, Protocol):
    """Receives the endpoints of a source."""

    def replace(self, source: str, specs: Sequence[EndpointSpec]) -> None:
        """Replace all endpoints of `source` by `specs`, which have unique addresses."""


class ReadingSink(ProblemSink, Protocol):
    """Receives scrapes and probes. Silence means unknown; readings age by their timestamp."""

    def ranked(self, address: str, ranks: int) -> None:
        """Set the number of data-parallel ranks behind an address; 1 for an engine without any."""

    def reading(self, key: str, reading: Reading, now: float) -> None:
        """Record the values of a metrics page, or of one rank on it, read at `now`."""

    def round_trip(self, address: str, rtt_s: float | None, now: float) -> None:
        """Record a raw round trip, or None for a failed probe."""


class ServedSink(ProblemSink, Protocol):
    """Receives the model names that endpoints serve."""

    def served(self, address: str, served: Served) -> None:
        """Set the model names that `address` lists."""


class KvEventSink(ProblemSink, Protocol):
    """Receives the KV cache events of engines. Hashes are the engine's own."""

    def stored(self, address: str, event: Stored, *, past: bool = False) -> None:
        """Note blocks that entered the cache of `address`; `past` if the report was replayed."""

    def removed(self, address: str, block_hashes: Sequence[int | bytes], tier: int = 0) -> None:
        """Note blocks that left a tier of `address`'s memory; tier 0 is the cache."""

    def cleared(self, address: str, *, past: bool = False, at_s: float = math.nan) -> None:
        """Note that the cache of `address` is empty; what enters it from now on is reported.

        `at_s`: since when, by the engine's clock; NaN if unknown.

        `past`: it was empty before this picker listened; the events since then follow.
        """

    def lost(self, address: str) -> None:
        """Note lost events of `address`: blocks may have entered or left its cache unseen."""
