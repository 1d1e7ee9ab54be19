"""Remember recent decisions to explain them: bounded in number and bytes, without prompts.

Recording happens on the request path, so it only stores references (about 2 us); readable forms are
built on demand. A record takes about 3 KB plus 100 bytes per candidate: in a fleet of a thousand
endpoints the byte limit is reached first.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice

from laar.core.decision import Completion, Decision
from laar.explain.decision_record import DecisionRecord, TableState
from laar.explain.record import shown
from laar.fleet.endpoints import EndpointTable

MAX_DECISIONS = 2000
"""Maximum number of decisions kept: 20 s at 100 per second, enough for useful percentiles."""

MAX_BYTES = 64 << 20
"""Maximum size of the decisions kept: 600 decisions in a fleet of 1,000 endpoints."""

_BYTES = 3000
_BYTES_PER_CANDIDATE = 13 * 8
_BYTES_PER_READING = 5 * 8


@dataclass(eq=False, repr=False)
class DecisionMemory:
    """Remembers decisions by id.

    Args:
        table: the endpoints, with the readings to keep.
        wall_clock: returns seconds since the epoch.
        on_settled: functions called, in order, with each record once its request has ended.
        outcome_of: returns whether a decision's answer was reported correct; None if unknown.
    """

    table: EndpointTable
    wall_clock: Callable[[], float]
    on_settled: Sequence[Callable[[DecisionRecord], object]] = ()
    outcome_of: Callable[[str], bool | None] = lambda _id: None

    def __post_init__(self) -> None:
        self._records: OrderedDict[str, DecisionRecord] = OrderedDict()
        self._open: dict[str, DecisionRecord] = {}  # requests in flight, remembered or not
        self.held_bytes = 0
        """Estimated memory used."""
        self.decided_total = 0
        self.decided_at = -math.inf
        """Time of the last decision."""

    def decided(self, decision: Decision) -> None:
        """Remember a decision; evict the oldest decisions above the limits."""
        record = self.record(decision)
        self.decided_total += 1
        self.decided_at = decision.now
        self._records[decision.id] = self._open[decision.id] = record
        self.held_bytes += record.size_bytes
        while len(self._records) > MAX_DECISIONS or self.held_bytes > MAX_BYTES:
            _, oldest = self._records.popitem(last=False)
            self.held_bytes -= oldest.size_bytes

    def record(self, decision: Decision) -> DecisionRecord:
        """Return a decision's record without remembering it."""
        view, table, readings, size_bytes = decision.view, self.table, None, _BYTES
        if view is not None:
            size_bytes += _BYTES_PER_CANDIDATE * len(view.slots)
            slots = set(view.slots.tolist()) if table.model_of else view.slots  # each only once
            if len(slots) != len(table.active):
                readings = TableState(
                    *(getattr(table, of.name).copy() for of in fields(TableState))
                )
                size_bytes += _BYTES_PER_READING * len(readings.failures)
        return DecisionRecord(
            decision=decision,
            time_s=self.wall_clock(),
            specs=table.by_slot,
            readings=readings,
            size_bytes=size_bytes,
        )

    def settled(self, decision: Decision, end: Completion) -> None:
        """Record how a decision's request ended, even if it is no longer remembered.

        The prompt and its index entry are dropped, since thousands of records outlive requests.
        """
        record, flight = self._open.pop(decision.id, None), decision.flight
        if record is not None:
            record.end, request, flight.receipt = end, decision.request, None
            request.spans, request.body, request.question, request.marks = (), b"", "", ()
            request.salt, request.response_id = "", request.response_id[:256]  # of any length
            if flight.served or not request.shadow:
                record.served, record.answered = flight.address, flight.model
            for observe in self.on_settled:
                observe(record)

    def get(self, decision_id: str) -> DecisionRecord | None:
        """Return the record with this id; None if it is not remembered."""
        return self._records.get(decision_id)

    def latest(self, count: int) -> Iterator[DecisionRecord]:
        """Return the last `count` records, newest first."""
        return islice(reversed(self._records.values()), count)

    def explained(self, record: DecisionRecord) -> dict[str, object]:
        """Return the record in readable form."""
        values, correct = shown(record, explained=True), self.outcome_of(record.decision.id)
        return values if correct is None else values | {"correct": correct}

    def __len__(self) -> int:
        return len(self._records)
