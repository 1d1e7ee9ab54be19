"""The inputs and outputs of the queue: plain values, and its limits.

The reason codes are stable: they go into a response header and label a metric. The words are those
that endpoint pickers use for the same outcomes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from laar.declaring import Applies, check

CANCELLED = "rejected-context-cancelled"
SATURATED = "rejected-saturated"
EXPIRED = "rejected-ttl-expired"
LET_IN = "let-in"
NO_ENDPOINT = "rejected-no-endpoint"
SHUTTING_DOWN = "rejected-shutting-down"
EVICTED_BY_BAND = "evicted-priority"
EVICTED_BY_TENANT = "evicted-queue-pressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A request as the queue sees it.

    Args:
        id: the picker's own, unique among those waiting.
        tenant: the tenant whose account its tokens count in.
        band: strict priority, higher first; 0 is usual.
        lane: names the set of endpoints it may go to; equal sets should share a name.
        reach: that set, a bit for each endpoint; 0 where it is not known.
        arrival_s: time of its arrival, on the clock that `now` is read from.
        objective_s: seconds from arrival to first token that it asks for.
        earlier_s: seconds that earlier attempts at the same question took: they reduce its slack.
        for_context: it waits for room for its context alone; it is let in after `max_hold_s`, or
            where the queue would refuse it.
        work_s: prefill seconds, alone.
        tokens: tokens that its tenant is charged with.
        body_bytes: bytes that it takes while it is held.
        is_long: whether one endpoint should run at most one such request while shorts wait.
    """

    id: Hashable
    arrival_s: float
    objective_s: float
    work_s: float
    tokens: int
    body_bytes: int
    is_long: bool = False
    tenant: str = ""
    band: int = 0
    lane: str = ""
    reach: int = 0
    earlier_s: float = 0.0
    for_context: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The request waits; its verdict comes from `dispatch` within `hold_s`, or from `drain`."""

    hold_s: float


@dataclass(frozen=True, slots=True)
class Shed:
    """The request gets laar's own answer: HTTP status, stable reason code, when to retry."""

    status: int
    reason: str
    retry_after_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps of the queue."""

    section: ClassVar = "flow"
    applies: ClassVar = Applies.AT_ONCE

    order: Annotated[Literal["lars", "fcfs"], Applies.AFTER_RESTART] = "lars"
    """Order of the queue: `lars` by relative slack, `fcfs` by arrival, to compare with."""
    max_waiting: Annotated[int, Ge(0), Le(1_000_000)] = 10_000
    """Requests that may wait; 429 beyond. Each costs some 20 KiB and its body. With 10,000 a
    dispatch takes some 100 us."""
    max_held_bytes: Annotated[int, Ge(0), Le(64 << 30)] = 512 << 20
    """Memory for the bodies of waiting requests, each counted twice: as received and as parsed. 429
    beyond."""
    patience: Annotated[float, Ge(0), Le(1000)] = 3.0
    """A request expires with 503 after a wait of this many times its objective, but not before
    `min_hold_s` and not after `max_hold_s`."""
    min_hold_s: Annotated[float, Ge(0), Le(3580)] = 5.0
    """Seconds before which no waiting request expires, unless `max_hold_s` is less: long enough for
    a long prefill."""
    max_hold_s: Annotated[float, Applies.AFTER_RESTART, Ge(0), Le(3580)] = 60.0
    """Seconds after which every waiting request expires, also while no endpoint is known (a fleet
    scaled to zero), and after which a session's turn goes without room for its context. 0 holds
    nothing. Keep it at most at `laar envoy --longest-hold`, which has the same default:
    otherwise Envoy waits only 2 s, and sends each held request elsewhere."""

    def __post_init__(self) -> None:
        """Raise SettingError for a value that cannot work."""
        check(self)
