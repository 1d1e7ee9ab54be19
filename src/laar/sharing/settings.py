"""How pickers share their state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from laar.declaring import FIXED, Applies, Matches

SNAPSHOT_INTERVAL_S = 20.0
"""Seconds between two snapshots for starting pickers: a third of the time for which records are
kept (`history_s`). One of the pickers writes each snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSettings:
    """What pickers share, and how soon."""

    applies: ClassVar = Applies.AFTER_RESTART

    namespace: Annotated[str, Matches(r"[A-Za-z0-9._-]{1,64}")] = "laar"
    """Name of the deployment: pickers share state only within a namespace. Use one for each
    fleet of endpoints; splitting a fleet by pool also divides the store's traffic."""
    flush_ms: Annotated[float, FIXED] = 12.0
    """Milliseconds for which records are gathered before they are sent, counted from the first
    decision among them. The ends of requests wait up to three times as long, to be sent along with
    a decision. With 12, a burst becomes one message, and two pickers may choose the same idle
    endpoint for at most 15 ms plus a round trip. Higher values need less CPU."""
    lease_s: Annotated[float, Ge(1), Le(60)] = 3.0
    """Seconds of silence after which a picker's requests in flight no longer count. A picker
    sends something every third of this time."""
    history_s: Annotated[float, FIXED] = 60.0
    """Seconds for which the store keeps records for starting pickers, besides the last snapshot."""
