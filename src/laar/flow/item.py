"""The queue's inputs and reason codes, as plain values.

Reason codes are stable: they go into a response header and a metric label. Other endpoint pickers
use the same codes for the same outcomes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

CANCELLED = "rejected-context-cancelled"
SATURATED = "rejected-saturated"
EXPIRED = "rejected-ttl-expired"
NO_ENDPOINT = "rejected-no-endpoint"
EVICTED_BY_BAND = "evicted-priority"
EVICTED_BY_TENANT = "evicted-queue-pressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A request as the queue sees it.

    Args:
        id: assigned by the picker, unique among waiting requests.
        tenant: the tenant charged with its tokens.
        band: strict priority, higher first; usually 0.
        lane: name of the set of endpoints it may go to; equal sets should share a name.
        reach: that set of endpoints, one bit each; 0 if unknown.
        arrival_s: arrival time, on the same clock as `now`.
        objective_s: TTFT objective, in seconds from arrival.
        earlier_s: seconds that its session waited in earlier attempts; they reduce its slack.
        for_context: whether it waits only for room for its context; it is let in after
            `max_hold_s`, or if the queue would refuse it.
        work_s: prefill seconds when run alone.
        tokens: tokens charged to its tenant.
        body_bytes: memory it takes while held.
        is_ready: whether an endpoint could serve it; if none could, it is held for `max_hold_s`
            whatever its objective.
        is_long: whether an endpoint should run at most one such request while short ones wait.
        request: the request itself, for the owner of the queue.
    """

    id: Hashable
    arrival_s: float
    objective_s: float
    work_s: float
    tokens: int
    body_bytes: int
    is_ready: bool = True
    is_long: bool = False
    tenant: str = ""
    band: int = 0
    lane: str = ""
    reach: int = 0
    earlier_s: float = 0.0
    for_context: bool = False
    request: Any = None
