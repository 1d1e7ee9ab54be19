"""Prefills in flight at each endpoint, in seconds of work, until done or estimated to be done.

If the first token of an answer will be seen, the prefill is counted until then. Most first tokens
are not seen (answers are not read, or not streamed), and counting until the answers end would fill
every endpoint with requests that only decode. A clock is used instead: an endpoint prefills in
order of arrival, so one is done once its own seconds and those of all earlier prefills have passed.

A clock alone would be as wrong as c(m) is: if too slow, idle endpoints would look full; if too
fast, the queue would never fill. Two things correct it:

* its pace, actual time over c(m)'s estimate, learned per model from the first tokens that are
  seen;
* the endpoints' readings: requests waiting in an engine have not started, even if the clock says
  so, and those sent before them have.

Synchronous; time is an argument, and may jump.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from laar.core.endpoints import EndpointTable, Floats
from laar.latest import Latest

_LOOK_EVERY_S = 0.01
"""Minimum seconds between clock updates: about one engine iteration."""

_UNDER_WAY_S = 0.25
"""A metrics page read within this many seconds after a request was sent may not include it yet."""

_MEMORY_S = 5.0
"""Prefill seconds after which a pace is mostly relearned: a few prompts in a loaded fleet."""
_LEAST_S = 0.2
"""Seconds of queued work below which no pace is learned, since one iteration and the round trip
dominate."""
_MIN_PACE, _MAX_PACE = 1 / 16, 4.0
"""Bounds on a pace, as a c(m) that was not measured is rarely further off. A pace that is too low
only makes the queue fill late; too high a pace leaves endpoints idle, so that bound is tighter."""
_MAX_MODELS = 1024


@dataclass(slots=True, kw_only=True)
class Prefill:
    """A request's prefill.

    Args:
        key: key of the request.
        model: the model whose pace applies.
        seconds: c(m)'s estimate for it.
        is_long: whether it is counted in `longs`.
        shown: whether the first token of its answer will be seen.
        fixed_s: the part of TTFT that is not prefill: the round trip.
        slot: the endpoint it was sent to.
        sent_s: when it was sent.
        ahead_s: seconds of work at its endpoint when it was sent, including its own.
        left_s: seconds of it that are still to be done, estimated by c(m).
    """

    key: Hashable
    model: str
    seconds: float
    is_long: bool
    shown: bool
    fixed_s: float = 0.0
    slot: int = -1
    sent_s: float = 0.0
    ahead_s: float = 0.0
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
        seconds: float64 by slot: prefill seconds in flight, estimated by c(m).
        long_seconds: the part of `seconds` that belongs to long requests.
        longs: the number of long requests.
        counted: number of requests that `seconds` includes.
        paces: the learned paces, by model.
    """

    def __init__(self, table: EndpointTable) -> None:
        self.seconds: Floats = np.zeros(0)
        self.long_seconds: Floats = np.zeros(0)
        self.longs: Floats = np.zeros(0)
        self.counted = 0
        self.table = table
        self._lines: dict[int, _Line] = {}
        self._open: dict[Hashable, Prefill] = {}
        self.paces: Latest[str, float] = Latest(_MAX_MODELS)
        self._looked_s = -math.inf
        self._grow()

    def __len__(self) -> int:
        """Return the number of open requests, counted or not."""
        return len(self._open)

    def pace(self, model: str) -> float:
        """Return a model's actual prefill time / c(m)'s estimate."""
        return self.paces.get(model, 1.0)

    def add(self, prefill: Prefill, slot: int, now: float) -> None:
        """Count a prefill that is sent to a slot now."""
        self._grow()
        line = self._lines.setdefault(slot, _Line())
        self._advance(slot, line, now)
        prefill.slot, prefill.sent_s, prefill.left_s = slot, now, prefill.seconds
        prefill.ahead_s = prefill.seconds + sum(other.left_s for other in line.counted.values())
        self._open[prefill.key] = line.requests[prefill.key] = prefill
        self._count(line, prefill)

    def answered(self, key: Hashable, now: float, *, ok: bool) -> None:
        """Handle the first byte of an answer; `ok` means that the request was accepted."""
        prefill = self._open.get(key)
        if prefill is None:
            return
        line = self._lines[prefill.slot]
        if key in line.counted and prefill.shown and ok:
            self._learn(prefill, now)
        self._uncount(line, prefill)

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
            needed_s = prefill.left_s * self.pace(prefill.model)
            if needed_s > passed_s:
                prefill.left_s -= passed_s / self.pace(prefill.model)
                return
            passed_s -= needed_s
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

    def _learn(self, prefill: Prefill, now: float) -> None:
        if prefill.ahead_s < _LEAST_S:
            return
        took_s = max(0.0, now - prefill.sent_s - prefill.fixed_s)
        pace = (self.pace(prefill.model) * _MEMORY_S + took_s) / (_MEMORY_S + prefill.ahead_s)
        self.paces[prefill.model] = min(_MAX_PACE, max(_MIN_PACE, pace))

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
