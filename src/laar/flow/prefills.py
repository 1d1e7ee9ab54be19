"""Prefills in flight at each endpoint, in seconds of work, until done or estimated to be done.

If the first token of an answer will be seen, the prefill is counted until then. Most first tokens
are not seen (answers are not read, or not streamed), and counting until the answers end would fill
every endpoint with requests that only decode. A clock is used instead: an endpoint prefills in
order of arrival, so one is done once its own seconds and those of all earlier prefills have passed.

The durations are those that the cost has learned (`laar.core.engines`). Readings of the endpoints
correct the clock: requests waiting in an engine have not started, even if the clock says so, and
those sent before them have.

Synchronous; time is an argument, and may jump.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from laar.core.endpoints import EndpointTable, Floats

_LOOK_EVERY_S = 0.01
"""Minimum seconds between clock updates: about one engine iteration."""

_UNDER_WAY_S = 0.25
"""A metrics page read within this many seconds after a request was sent may not include it yet."""


@dataclass(slots=True, kw_only=True)
class Prefill:
    """A request's prefill.

    Args:
        key: key of the request.
        seconds: its expected duration.
        is_long: whether it is counted in `longs`.
        shown: whether the first token of its answer will be seen.
        slot: the endpoint it was sent to.
        sent_s: when it was sent.
        left_s: seconds of it that are still to be done.
    """

    key: Hashable
    seconds: float
    is_long: bool
    shown: bool
    slot: int = -1
    sent_s: float = 0.0
    left_s: float = 0.0


@dataclass(slots=True)
class _Line:
    """An endpoint's open requests, and which of them are counted, both in the order sent."""

    requests: dict[Hashable, Prefill] = field(default_factory=dict)
    counted: dict[Hashable, Prefill] = field(default_factory=dict)
    at_s: float = -math.inf
    read_s: float = math.nan


class Prefills:
    """Counts of prefills in flight, by endpoint.

    Args:
        table: the endpoints and their readings.

    Attributes:
        table: those endpoints.
        seconds: float64 by slot: prefill seconds in flight.
        long_seconds: the part of `seconds` that belongs to long requests.
        longs: the number of long requests.
        counted: number of requests that `seconds` includes.
    """

    def __init__(self, table: EndpointTable) -> None:
        self.seconds: Floats = np.zeros(0)
        self.long_seconds: Floats = np.zeros(0)
        self.longs: Floats = np.zeros(0)
        self.counted = 0
        self.table = table
        self._lines: dict[int, _Line] = {}
        self._open: dict[Hashable, Prefill] = {}
        self._looked_s = -math.inf
        self._grow()

    def __len__(self) -> int:
        """Return the number of open requests, counted or not."""
        return len(self._open)

    def add(self, prefill: Prefill, slot: int, now: float) -> None:
        """Count a prefill that is sent to a slot now."""
        self._grow()
        line = self._lines.setdefault(slot, _Line())
        self._advance(slot, line, now)
        prefill.slot, prefill.sent_s, prefill.left_s = slot, now, prefill.seconds
        self._open[prefill.key] = line.requests[prefill.key] = prefill
        self._count(line, prefill)

    def answered(self, key: Hashable) -> None:
        """Handle the first byte of an answer."""
        prefill = self._open.get(key)
        if prefill is not None:
            self._uncount(self._lines[prefill.slot], prefill)

    def ended(self, key: Hashable) -> None:
        """Handle the end of a request; ignore unknown requests."""
        prefill = self._open.pop(key, None)
        if prefill is None:
            return
        slot = prefill.slot
        line = self._lines[slot]
        self._uncount(line, prefill)
        del line.requests[key]
        if not line.requests:
            del self._lines[slot]
            # Sums of floats drift, so set an idle endpoint's to exactly zero.
            self.seconds[slot] = self.long_seconds[slot] = self.longs[slot] = 0.0

    def moved(self, key: Hashable, slot: int, now: float) -> None:
        """Handle a request's move to an endpoint other than the one it was sent to."""
        prefill = self._open.get(key)
        if prefill is not None and prefill.slot != slot:
            self.ended(key)
            self.add(prefill, slot, now)

    def look(self, now: float) -> None:
        """Bring the counts up to date."""
        self._grow()
        if 0.0 <= now - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now
        for slot, line in self._lines.items():
            self._advance(slot, line, now)

    # -- the clock -----------------------------------------------------------------------------

    def _advance(self, slot: int, line: _Line, now: float) -> None:
        read_s = float(self.table.read_at[slot])
        if read_s != line.read_s and read_s <= now:
            self._pass(line, read_s)
            line.read_s = read_s
            self._believe(slot, line, read_s)
        self._pass(line, now)
        line.at_s = now  # even if the clock was set back

    def _pass(self, line: _Line, now: float) -> None:
        """Let time pass; requests are prefilled in the order in which they were sent."""
        passed_s = now - line.at_s
        if passed_s <= 0.0:
            return
        line.at_s = now
        for prefill in tuple(line.counted.values()):
            if prefill.left_s > passed_s:
                prefill.left_s -= passed_s
                return
            passed_s -= prefill.left_s
            prefill.left_s = 0.0
            if not prefill.shown:
                self._uncount(line, prefill)

    def _believe(self, slot: int, line: _Line, read_s: float) -> None:
        """Correct the clock with an endpoint's reading."""
        waiting, running = float(self.table.waiting[slot]), float(self.table.running[slot])
        if math.isnan(waiting) or math.isnan(running):
            return
        there = [prefill for prefill in line.requests.values() if prefill.sent_s < read_s]
        # Other pickers may send there too: assume that ours wait in the same proportion as all.
        ours = min(1.0, len(there) / max(1.0, waiting + running))
        begun = len(there) - min(len(there), math.ceil(waiting * ours))
        for prefill in there[begun:]:
            if prefill.key not in line.counted and not prefill.shown:
                prefill.left_s = prefill.seconds
                self._count(line, prefill)
        for prefill in there[: max(0, begun - 1)]:  # the last one may still be running
            if not prefill.shown and prefill.sent_s < read_s - _UNDER_WAY_S:
                self._uncount(line, prefill)
        line.counted = {
            key: prefill for key, prefill in line.requests.items() if key in line.counted
        }

    # -- the sums ------------------------------------------------------------------------------

    def _count(self, line: _Line, prefill: Prefill) -> None:
        line.counted[prefill.key] = prefill
        self.counted += 1
        self._add(prefill, 1.0)

    def _uncount(self, line: _Line, prefill: Prefill) -> None:
        if line.counted.pop(prefill.key, None) is not None:
            self.counted -= 1
            self._add(prefill, -1.0)

    def _add(self, prefill: Prefill, sign: float) -> None:
        self.seconds[prefill.slot] += sign * prefill.seconds
        if prefill.is_long:
            self.long_seconds[prefill.slot] += sign * prefill.seconds
            self.longs[prefill.slot] += sign

    def _grow(self) -> None:
        missing = self.table.capacity - len(self.seconds)
        if missing > 0:
            self.seconds = np.append(self.seconds, np.zeros(missing))
            self.long_seconds = np.append(self.long_seconds, np.zeros(missing))
            self.longs = np.append(self.longs, np.zeros(missing))
