"""How pickers share what they know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from laar.declaring import Applies, Matches

__all__ = ["SharingSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSettings:
    """What is shared, and how soon."""

    section: ClassVar = "share"
    applies: ClassVar = Applies.AFTER_RESTART

    namespace: Annotated[str, Matches(r"[A-Za-z0-9._-]{1,64}")] = "laar"
    """Pickers with the same namespace are one deployment; those of another one's store entries are
    never read. One for each fleet of endpoints: splitting a fleet by pool divides the traffic of
    the store as well."""
    flush_ms: Annotated[float, Ge(1), Le(1000)] = 5.0
    """Milliseconds that records are gathered before they are sent, and batches in the store before
    they are read. 5: a burst becomes one message, and two pickers see one idle endpoint for 10 ms
    and a round trip at most. More costs less CPU."""
    lease_s: Annotated[float, Ge(1), Le(60)] = 3.0
    """Seconds without a word from a picker after which nothing of what it had in flight counts. A
    picker sends something every third of it."""
    history_s: Annotated[float, Ge(5), Le(3600)] = 60.0
    """Seconds of records that the store keeps for pickers that start, beyond the last snapshot."""
    snapshot_interval_s: Annotated[float, Ge(1), Le(3600)] = 20.0
    """Seconds between two snapshots for pickers that start; one picker writes each."""
    max_waiting_bytes: Annotated[int, Ge(1 << 16), Le(1 << 30)] = 16 << 20
    """Records that wait while the store is away, in bytes: half a minute of 1,000 decisions a
    second. Beyond it the oldest are dropped, which costs cache hits; loads never are."""
