"""What a picker has to tell the others, until it is sent."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

import numpy as np

from laar.core.endpoints import EndpointTable, Floats
from laar.core.engines import Engines
from laar.sharing.batches import Batch
from laar.sharing.records import Entered, Load, Record

__all__ = ["BATCH_RECORDS", "Outbox"]

BATCH_RECORDS = 1024
"""Records in one batch; a backlog becomes several."""

FULL_S = 5.0
"""Between two batches with all loads: that long a lost one can matter."""

_RECORD_BYTES = 64  # of most records, as they are written
_LEAST_CHANGE = 0.05  # tokens or milliseconds; sums of floats drift


class Outbox:
    """Gathers records, and finds by itself which loads have changed.

    Args:
        table: whose counters are sent.
        engines: the same.
        origin: this picker.
        wall_clock: for the age of a batch at its readers.
        max_waiting_bytes: of records that are not sent yet; beyond it the oldest go.
        beat_s: a batch is made at least that often.
        oldest_open: names the oldest entry of a prompt that has not ended.
    """

    def __init__(
        self,
        table: EndpointTable,
        engines: Engines,
        origin: str,
        *,
        wall_clock: Callable[[], float],
        max_waiting_bytes: int,
        beat_s: float,
        oldest_open: Callable[[], int],
    ) -> None:
        self._table = table
        self._engines = engines
        self._origin = origin
        self._wall_clock = wall_clock
        self._max_bytes = max_waiting_bytes
        self._beat_s = beat_s
        self._oldest_open = oldest_open
        self._waiting: deque[Record] = deque()
        self.closed = False
        """There is no way to the others and never will be: nothing waits for one."""
        self.waiting_bytes = 0
        self.dropped = 0
        self.sent: Counter[str] = Counter()
        """Records by kind."""
        self._seq = 0
        self._beat_at = float("-inf")
        self._full_at = float("-inf")
        self._shown = np.zeros((0, 9))
        self._addresses: list[str] = []
        self._version = -1

    def add(self, record: Record) -> None:
        """Takes a record; the oldest goes where too much waits."""
        if self.closed:
            return
        self._waiting.append(record)
        self.waiting_bytes += _bytes_of(record)
        while self.waiting_bytes > self._max_bytes:
            self.waiting_bytes -= _bytes_of(self._waiting.popleft())
            self.dropped += 1

    def send_all_loads(self) -> None:
        """The next batch has every load: a picker does not know them."""
        self._full_at = float("-inf")

    def batches(self, now: float, key_id: str) -> list[Batch]:
        """What there is to send; empty where nothing changed and no sign of life is due."""
        full = now - self._full_at >= FULL_S
        loads = self._loads(full=full)
        if not (loads or self._waiting or full or now - self._beat_at >= self._beat_s):
            return []
        self._beat_at = now
        if full:
            self._full_at = now
        made = []
        # A full batch says that what is not in it is zero, so it may not be divided.
        records: list[Record] = list(loads)
        while True:
            while self._waiting and len(records) < max(BATCH_RECORDS, len(loads)):
                record = self._waiting.popleft()
                self.waiting_bytes -= _bytes_of(record)
                records.append(record)
            self.sent.update(type(record).__name__.lower() for record in records)
            self._seq += 1
            made.append(
                Batch(
                    self._origin,
                    self._seq,
                    key_id,
                    self._wall_clock(),
                    self._oldest_open(),
                    full,
                    records,
                )
            )
            if not self._waiting:
                return made
            records, full = [], False

    def _loads(self, *, full: bool) -> list[Load]:
        """The loads of endpoints where they have changed since they were last sent."""
        gone = self._follow_table()
        counted = self._counted()
        rows = counted.any(axis=1) if full else _differ(counted, self._shown)
        found = np.flatnonzero(rows)
        self._shown = counted
        loads = [
            Load(self._addresses[slot], *counted[slot].tolist())
            for slot in found.tolist()
            if self._addresses[slot]
        ]
        return [*(Load(address, *[0.0] * 9) for address in gone), *loads]

    def _follow_table(self) -> list[str]:
        """Learns the addresses of slots; returns those whose slot has another one now."""
        table = self._table
        if table.version == self._version and len(self._shown) == table.capacity:
            return []
        self._version = table.version
        more = table.capacity - len(self._addresses)
        if more > 0:
            self._addresses += [""] * more
            self._shown = np.concatenate([self._shown, np.zeros((more, 9))])
        gone = []
        for slot in table.active.tolist():
            address, known = table.spec(slot).address, self._addresses[slot]
            if address != known:
                if known and self._shown[slot].any() and table.slot_counted(known) < 0:
                    gone.append(known)
                self._shown[slot] = 0.0
                self._addresses[slot] = address
        return gone

    def _counted(self) -> Floats:
        engines, size = self._engines, self._table.capacity
        counted = np.zeros((size, 9))
        counted[:, :4] = self._table.own()
        known = min(size, len(engines.traffic.sent))
        for place, column in enumerate(
            (
                engines.traffic.own_ahead_s,
                engines.traffic.sent,
                engines.traffic.sent_s,
                engines.traffic.hidden_s,
                engines.traffic.own_read_s,
            )
        ):
            counted[:known, 4 + place] = column[:known]
        return counted


def _differ(one: Floats, other: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    changed: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        np.abs(one[:, :4] - other[:, :4]) > _LEAST_CHANGE
    ).any(axis=1) | (one[:, 4:] != other[:, 4:]).any(axis=1)
    return changed


def _bytes_of(record: Record) -> int:
    if isinstance(record, Entered):
        return _RECORD_BYTES + 11 * len(record.tail)
    return _RECORD_BYTES
