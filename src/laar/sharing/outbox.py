"""The queue of records to send to the other pickers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from laar.sharing.batches import SCHEMA, Batch
from laar.sharing.records import Heard, Load, Record

if TYPE_CHECKING:
    from laar.sharing.sharing import Sharing

BATCH_RECORDS = 128
"""Records per batch. A picker applies a batch without interruption, in about 3 ms."""

_BATCH_BYTES = 32 << 10  # maximum per batch, not counting its last record and its loads

AT_ONCE_BYTES = 256 << 10
"""Bytes sent at a time, not counting the last batch, so that a backlog does not block the event
loop: one second on a slow link."""

MAX_WAITING_BYTES = 64 << 20
"""Bytes of records that may wait while the store is unreachable: 40 s at 1,000 decisions per second
with prompts of 20 kB. They take at most 110 MB of memory. Beyond that the oldest are dropped, which
costs cache hits; loads are never dropped."""

_BEATS = 3.0
"""Heartbeats per lease; if all of them are missed, the connection is considered lost."""

FULL_S = 5.0
"""Seconds between batches with all loads, which limits how long a lost batch matters."""

_RECORD_BYTES = 64  # size of most records when serialized


class Outbox:
    """Queues a picker's records, and detects which of its loads have changed."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._table = sharing.director.table
        self._engines = sharing.director.engines
        self._waiting: deque[Record] = deque()
        self.on_news: Callable[[bool], object] = lambda _soon: None
        """Called when there is something to send, and again before `batches` only if urgent."""
        self._announced: bool | None = None
        self.closed = False
        """Whether there are no other pickers and never will be; then nothing is queued."""
        self.waiting_bytes = 0
        self.sent: Counter[str] = Counter()
        """Records by kind."""
        self.seq = 0
        """Number of the last batch."""
        self._beat_at = float("-inf")
        self._full_at = float("-inf")
        self._changed: set[int] = set()
        self._addresses: dict[int, str] = {}  # by slot, of removed endpoints too
        self._version = -1
        self._table.on_count = self._count

    def add(self, record: Record) -> None:
        """Queue a record; drop the oldest records above `MAX_WAITING_BYTES`."""
        if self.closed:
            return
        self._waiting.append(record)
        self.waiting_bytes += _bytes_of(record)
        self._has_news(soon=record.soon)
        while self.waiting_bytes > MAX_WAITING_BYTES:
            self.waiting_bytes -= _bytes_of(self._waiting.popleft())
            self._sharing.lost["dropped"] += 1

    def send_all_loads(self) -> None:
        """Send all loads with the next batch, because some picker does not know them."""
        self._full_at = float("-inf")
        self._has_news()

    def batches(self, now: float) -> list[Batch]:
        """Return the batches to send; empty if nothing changed and no heartbeat is due.

        Return the first `AT_ONCE_BYTES` of a backlog, and announce the rest through `on_news`.
        """
        self._announced = None
        sharing, lease_s = self._sharing, self._sharing.settings.lease_s
        full = now - self._full_at >= FULL_S
        loads = self._loads(full=full)
        if not (loads or self._waiting or full or now - self._beat_at >= lease_s / _BEATS):
            return []
        if now - self._beat_at > lease_s:  # the connection was lost meanwhile
            # Evidence about endpoints' health describes the past, and failures may share the
            # cause that cut this picker off.
            self._waiting = deque(it for it in self._waiting if not isinstance(it, Heard))
            self.waiting_bytes = sum(map(_bytes_of, self._waiting))
        self._beat_at = now
        if full:
            self._full_at = now
        made = []
        self.sent["load"] += len(loads)
        left_bytes, prefixes = self.waiting_bytes - AT_ONCE_BYTES, sharing.prefixes
        while True:
            records = self._next_records()
            for record in records:
                self.sent[record.kind] += 1
            self.seq += 1
            made.append(
                Batch(
                    SCHEMA,
                    sharing.settings.namespace,
                    sharing.origin,
                    self.seq,
                    sharing.key_id,
                    sharing.wall_clock(),
                    # Readers must keep an entry open as long as its end is still in the queue.
                    0 if self._waiting or prefixes is None else prefixes.oldest_open,
                    full,
                    loads,
                    records,
                )
            )
            if not self._waiting:
                return made
            if self.waiting_bytes <= left_bytes:
                self._has_news()
                return made
            loads, full = {}, False

    def _next_records(self) -> list[Record]:
        """Return the records of one batch."""
        records: list[Record] = []
        least_bytes = self.waiting_bytes - _BATCH_BYTES
        while self._waiting and len(records) < BATCH_RECORDS and self.waiting_bytes > least_bytes:
            record = self._waiting.popleft()
            self.waiting_bytes -= _bytes_of(record)
            records.append(record)
        return records

    def _count(self, slot: int, more: bool) -> None:
        self._changed.add(slot)
        self._has_news(soon=more)

    def _has_news(self, *, soon: bool = True) -> None:
        if not self._announced and soon is not self._announced:
            self._announced = soon
            self.on_news(soon)

    def _loads(self, *, full: bool) -> dict[str, Load]:
        """Return the loads that have changed since they were sent; if `full`, all above zero."""
        table = self._table
        if table.version != self._version:
            self._version = table.version
            self._addresses |= {slot: table.spec(slot).key for slot in table.active.tolist()}
        changed, self._changed = self._changed, set()
        loads: dict[str, Load] = {}
        if not (changed or full):
            return loads
        slots = np.arange(table.capacity) if full else np.array([*changed], np.intp)
        own = self._table.own(slots), self._engines.traffic.shared(slots)
        counted = np.concatenate(own).round(4).T  # one row per slot
        for slot, load in zip(slots.tolist(), counted.tolist(), strict=True):
            address = self._addresses.get(slot)
            if address and (slot in changed or any(load)):
                loads[address] = Load._make(load)
        return loads


def _bytes_of(record: Record) -> int:
    long = getattr(record, "hashes", getattr(record, "changes", b""))
    return _RECORD_BYTES + len(long) * 4 // 3
