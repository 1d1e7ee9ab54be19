"""What goes into the queue and what comes out: plain values, and the caps it keeps.

The reason codes are stable: they go into a response header and label a metric. The words are those
that endpoint pickers use for the same outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from laar.errors import SettingError
from laar.flow.slack import ORDERS

__all__ = [
    "CANCELLED",
    "EVICTED_BY_BAND",
    "EVICTED_BY_TENANT",
    "EXPIRED",
    "NO_ENDPOINT",
    "SATURATED",
    "SHUTTING_DOWN",
    "Held",
    "Item",
    "Limits",
    "Shed",
]

CANCELLED = "rejected-context-cancelled"
SATURATED = "rejected-saturated"
EXPIRED = "rejected-ttl-expired"
NO_ENDPOINT = "rejected-no-endpoint"
SHUTTING_DOWN = "rejected-shutting-down"
EVICTED_BY_BAND = "evicted-priority"
EVICTED_BY_TENANT = "evicted-queue-pressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A request as the queue sees it.

    Args:
        id: the picker's own, unique among those waiting.
        tenant: whom its tokens are charged to.
        band: strict priority, higher first; 0 is usual.
        lane: names the set of endpoints it may go to; equal sets should share a name.
        arrival_s: when it came, on the clock that `now` is read from.
        objective_s: from arrival to first token.
        earlier_s: that earlier attempts at the same question took: its slack is less by so much.
        work_s: prefill seconds, alone.
        tokens: what its tenant is charged with.
        body_bytes: what holding it costs.
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
    earlier_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Held:
    """The request waits; its verdict comes from `dispatch` within `hold_s`, or from `drain`."""

    hold_s: float


@dataclass(frozen=True, slots=True)
class Shed:
    """The request gets an answer of ours: HTTP status, stable reason code, when to come again."""

    status: int
    reason: str
    retry_after_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps of the queue.

    Args:
        max_waiting: requests; each costs a suspended coroutine and its body, and 10,000 keep a
            dispatch at some 100 us.
        max_held_bytes: bodies; half a gibibyte leaves room in a 1 GiB container.
        patience: a request is beyond hope after this many times its objective.
        min_hold_s: patience for very short objectives; one long prefill may pass meanwhile.
        max_hold_s: patience for long ones, and for all while no endpoint is ready (a fleet scaled
            to zero needs minutes). Keep it under the proxy's message timeout.
        order: `lars`, or another of `laar.flow.slack.ORDERS` to compare with.
    """

    max_waiting: int = 10_000
    max_held_bytes: int = 1 << 29
    patience: float = 3.0
    min_hold_s: float = 5.0
    max_hold_s: float = 120.0
    order: str = "lars"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise SettingError(f"flow.order: {self.order!r} is none of {', '.join(ORDERS)}")
        if self.max_waiting < 0 or self.max_held_bytes < 0:
            raise SettingError("flow: max_waiting and max_held_bytes must not be negative")
        if not (self.patience >= 0 and 0 <= self.min_hold_s <= self.max_hold_s < math.inf):
            raise SettingError(
                "flow: patience must not be negative, and min_hold_s must lie in 0 .. max_hold_s"
            )
