"""How pickers share what they know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from laar.declaring import Applies, Matches

__all__ = ["SharingSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSettings:
    """The records that pickers share, and their delays."""

    section: ClassVar = "share"
    applies: ClassVar = Applies.AFTER_RESTART

    namespace: Annotated[str, Matches(r"[A-Za-z0-9._-]{1,64}")] = "laar"
    """Name of the deployment: pickers share state only with pickers of the same namespace. Use
    one for each fleet of endpoints; splitting a fleet by pool divides the traffic of the store
    as well."""
    flush_ms: Annotated[float, Ge(1), Le(1000)] = 12.0
    """Milliseconds for which records are gathered before they are sent, counted from the first
    decision among them. The ends of requests wait up to three times as long for a decision to go
    out with. With 12 a burst becomes one message, and two pickers see the same idle endpoint for at
    most 15 ms and a round trip. More costs less CPU."""
    lease_s: Annotated[float, Ge(1), Le(60)] = 3.0
    """Seconds of silence of a picker after which its requests in flight no longer count. A picker
    sends something every third of this time."""
    history_s: Annotated[float, Ge(5), Le(3600)] = 60.0
    """Seconds of records, beyond the last snapshot, that the store keeps for pickers that start."""
    snapshot_interval_s: Annotated[float, Ge(1), Le(3600)] = 20.0
    """Seconds between two snapshots, for pickers that start. One of the pickers writes each
    snapshot."""
    max_waiting_bytes: Annotated[int, Ge(1 << 16), Le(1 << 30)] = 16 << 20
    """Bytes of records that may wait while the store is unreachable: half a minute at 1,000
    decisions a second. Beyond it the oldest are dropped, which costs cache hits; records of loads
    are never dropped."""
