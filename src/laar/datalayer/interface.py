"""The interfaces of collectors: small protocols that need no table and no metrics.

A collector is an object with ``async def run(self) -> None`` that ends only when cancelled. It
depends only on its sink's protocol, so the runner, the lab and the tests can pass their own. All
calls are made on the event loop and must return immediately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from laar.faults import Fault
from laar.fleet.endpoints import Reading
from laar.fleet.membership import EndpointSpec, Served

if TYPE_CHECKING:
    from laar.prefix.tokens import Stored

Clock = Callable[[], float]
"""Monotonic seconds."""

GONE = ""
"""The message for a source that is no longer watched, such as a removed endpoint."""

Targets = Callable[[], Sequence[EndpointSpec]]
"""Returns the endpoints to visit now; called repeatedly, so that changes take effect."""


class ProblemSink(Protocol):
    """Receives the collectors' problems, for the page, the log and a counter."""

    def problem(self, fault: Fault, message: str | None, name: str = "") -> None:
        """Report a problem of the instance `name`, once per failure; None or `GONE` clears it.

        None may be passed for an instance without a problem.
        """


class EndpointSink(ProblemSink, Protocol):
    """Receives the endpoints of a source."""

    def replace(self, source: str, specs: Sequence[EndpointSpec]) -> None:
        """Replace all endpoints of `source` with `specs`, which have unique addresses."""


class EngineSink(ProblemSink, Protocol):
    """Receives what engines report: readings, names, and cache events.

    Without new readings, the old ones age. Block hashes are the engine's; `key` is the endpoint's.
    """

    def ranked(self, address: str, ranks: int) -> None:
        """Set the number of data-parallel ranks at an address; 1 for an engine without ranks."""

    def reading(self, key: str, reading: Reading, now: float) -> None:
        """Record the numbers of a metrics page, or of one rank on it, read at `now`."""

    def round_trip(self, address: str, rtt_s: float | None, now: float) -> None:
        """Record a raw round trip; None if it failed, infinity if the connection was refused."""

    def served(self, address: str, served: Served) -> None:
        """Set the model names that `address` lists."""

    def publishes(self, address: str, labels: Mapping[str, str]) -> None:
        """Record where an engine says that it publishes KV events, as labels would; {} if not."""

    def stored(self, key: str, event: Stored) -> None:
        """Record blocks that entered an endpoint's cache."""

    def removed(
        self,
        key: str,
        block_hashes: Sequence[int | bytes],
        tier: int = 0,
        *,
        is_state: bool = False,
    ) -> None:
        """Record blocks, or states after them, removed from a tier; tier 0 is the cache."""

    def cleared(self, key: str, *, past: bool = False, at_s: float = math.nan) -> None:
        """Record that an endpoint's cache is empty; later additions are reported.

        `at_s`: time at which it was emptied, by the engine's clock; NaN if unknown.

        `past`: it was emptied before the picker started to listen; later events follow.
        """

    def lost(self, key: str) -> None:
        """Record that an endpoint's events were lost: its cache may have changed unseen."""
