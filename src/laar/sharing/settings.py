"""How pickers share what they know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from laar.declaring import FIXED, Applies, Matches

SNAPSHOT_INTERVAL_S = 20.0
"""Seconds between two snapshots, for pickers that start: a third of the records that are kept
(`history_s`). One of the pickers writes each snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSettings:
    """The records that pickers share, and their delays."""

    section: ClassVar = "share"
    applies: ClassVar = Applies.AFTER_RESTART

    namespace: Annotated[str, Matches(r"[A-Za-z0-9._-]{1,64}")] = "laar"
    """Name of the deployment: pickers share state only with pickers of the same namespace. Use
    one for each fleet of endpoints; splitting a fleet by pool divides the traffic of the store
    as well."""
    flush_ms: Annotated[float, FIXED] = 12.0
    """Milliseconds for which records are gathered before they are sent, counted from the first
    decision among them. The ends of requests wait up to three times as long for a decision to go
    out with. With 12 a burst becomes one message, and two pickers see the same idle endpoint for at
    most 15 ms and a round trip. More costs less CPU."""
    lease_s: Annotated[float, Ge(1), Le(60)] = 3.0
    """Seconds of silence of a picker after which its requests in flight no longer count. A picker
    sends something every third of this time."""
    history_s: Annotated[float, Ge(5), Le(3600)] = 60.0
    """Seconds of records, beyond the last snapshot, that the store keeps for pickers that start."""
