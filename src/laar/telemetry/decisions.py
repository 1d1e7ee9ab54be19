"""The last decisions, to explain them: bounded in number and in bytes, and without prompts.

Recording is on the request path, so it stores references and counts (some eight microseconds);
records are made on request. A record weighs some 2 KB and 100 bytes for each candidate:
in a fleet of a thousand endpoints the byte limit ends the memory first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from laar.accuracy.reports import OutcomeReports
from laar.core.decision import Completion, Decision
from laar.core.endpoints import EndpointTable
from laar.core.membership import EndpointSpec
from laar.explain.decision_record import DecisionRecord, record_of
from laar.explain.record import explained

MAX_DECISIONS = 2000
"""Enough for percentiles worth showing; at 100 requests a second, those of the last 20 s."""

MAX_BYTES = 64 << 20
"""Six hundred decisions over a thousand endpoints."""

_BYTES = 2000
_BYTES_PER_CANDIDATE = 13 * 8
_BYTES_PER_READING = 4 * 8


class DecisionMemory:
    """Remembers decisions by id.

    Args:
        table: the endpoints.
        wall_clock: seconds since the epoch.
        on_settled: called with each record once its request has ended.
        reports: reported outcomes of answers, and the attempt that followed each.
        max_decisions: most decisions that are remembered.
        max_bytes: most memory that they may take, by estimate.
    """

    def __init__(
        self,
        table: EndpointTable,
        *,
        wall_clock: Callable[[], float],
        on_settled: Callable[[DecisionRecord], None] = lambda _record: None,
        reports: OutcomeReports | None = None,
        max_decisions: int = MAX_DECISIONS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._table = table
        self._wall_clock = wall_clock
        self._on_settled = on_settled
        self.reports = reports
        self._max_decisions = max_decisions
        self._max_bytes = max_bytes
        self._records: OrderedDict[str, DecisionRecord] = OrderedDict()
        self._open: dict[str, DecisionRecord] = {}  # of requests in flight, remembered or not
        self._bytes = 0
        self._specs_version = -1
        self._specs: Mapping[int, EndpointSpec] = {}
        self.decided_total = 0

    def decided(self, decision: Decision) -> None:
        """Remember a decision; drop the oldest if there are too many."""
        record = self.record(decision)
        self.decided_total += 1
        self._records[record.id] = self._open[record.id] = record
        self._bytes += _size(record)
        while len(self._records) > self._max_decisions or self._bytes > self._max_bytes:
            _, oldest = self._records.popitem(last=False)
            self._bytes -= _size(oldest)

    def record(self, decision: Decision) -> DecisionRecord:
        """Return the record of a decision, without remembering it."""
        table = self._table
        if self._specs_version != table.version:
            self._specs_version = table.version
            self._specs = {int(slot): table.spec(int(slot)) for slot in table.active}
        return record_of(decision, self._specs, table, self._wall_clock())

    def settled(self, decision: Decision, end: Completion) -> None:
        """Note how a decision's request ended, whether or not it is still remembered."""
        record, flight = self._open.pop(decision.id, None), decision.flight
        if record is not None:
            record.end = end
            record.failed = flight.failed
            if flight.served or not record.shadow:
                record.served, record.answered = flight.address, flight.model
            self._on_settled(record)

    def get(self, decision_id: str) -> DecisionRecord | None:
        """Return the record with this id, while it is remembered."""
        return self._records.get(decision_id)

    def latest(self, count: int) -> Iterator[DecisionRecord]:
        """Return the last `count` records, newest first."""
        return islice(reversed(self._records.values()), count)

    def explained(self, record: DecisionRecord) -> dict[str, object]:
        """Return the record for a reader."""
        shown = explained(record)
        correct = self.reports.outcome_of(record.id) if self.reports is not None else None
        return shown if correct is None else shown | {"correct": correct}

    def __len__(self) -> int:
        return len(self._records)

    @property
    def held_bytes(self) -> int:
        """Memory taken, by estimate."""
        return self._bytes


def _size(record: DecisionRecord) -> int:
    candidates = 0 if record.view is None else len(record.view.slots)
    readings = 0 if record.readings is None else len(record.readings.failures)
    return _BYTES + _BYTES_PER_CANDIDATE * candidates + _BYTES_PER_READING * readings
