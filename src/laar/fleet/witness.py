"""Whether anything confirms the load that a metrics page shows.

A gauge may show load that is long gone. Engines set gauges at their next step, which never comes if
all requests were aborted, and some add up the gauges of processes that have died. If such a gauge
keeps requests away, nothing happens at the engine, so the gauge never changes: only requests could
correct it. The time of a scrape proves only that the page was served.

So a page needs a witness. While no request that laar knows of is there, its counter of work has to
move: others' work. A gauge that trembles is no work; it is a witness only on a page without a
counter. If nothing moves, the engine is idle, and what its gauges show is what they show without
load. That is subtracted from then on, until a gauge falls well below it: such a gauge is alive
after all. The next requests then find out whether the engine answers.

While known requests are there, movement proves nothing: a counter that moves with them does not
confirm two hundred others. So the last verdict stands: an engine that was full and hangs stays so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

STILL_S = 2.5
"""Seconds without a witness after which an engine is idle: three scrapes, as it may work without a
step in between."""
_TREMBLES = 0.95
"""Share of what a gauge shows without load to which it may fall and still show no load."""


@dataclass(slots=True)
class Page:
    """The metrics page of one endpoint, as last read.

    Args:
        shown: the gauges, then a counter of work; NaN where one is missing.
        in_flight: requests known to be at the endpoint.
        chosen: number of the latest decision for the endpoint.
        lately: whether known requests were there before the last reading.
        still_s: seconds without a witness, minus those with one.
        idle: what the gauges show without load; empty if they need a witness no longer.
    """

    shown: Sequence[float]
    in_flight: float
    chosen: float
    at: float
    lately: bool = False
    still_s: float = 0.0
    idle: Sequence[float] = ()

    @property
    def is_idle(self) -> bool:
        """Whether nothing confirms any load."""
        return self.still_s >= STILL_S

    def read(
        self, shown: Sequence[float], in_flight: float, chosen: float, now: float
    ) -> Sequence[float]:
        """Return the gauges of a new reading, less what they show without load."""
        counts = not math.isnan(shown[-1]) or not math.isnan(self.shown[-1])
        pairs = list(zip(shown, self.shown, strict=True))[-1 if counts else 0 :]
        moved = any(a != b and (a == a or b == b) for a, b in pairs)
        sent = chosen != self.chosen
        here = sent or in_flight > 0.0 or self.in_flight > 0.0
        present, self.lately = here or self.lately, here  # a page may lag by one reading
        if not present:
            passed_s = max(0.0, now - self.at) * (-1.0 if moved else 1.0)
            self.still_s = min(max(self.still_s + passed_s, 0.0), 2.0 * STILL_S)
        self.shown, self.in_flight, self.chosen, self.at = shown, in_flight, chosen, now
        gauges = shown[:-1]
        if not self.is_idle:
            self.idle = [0.0] * len(gauges)
        elif not moved and not present:
            self.idle = [0.0 if math.isnan(value) else value for value in gauges]
        else:
            self.idle = [
                min(i, v) if v >= _TREMBLES * i else 0.0
                for i, v in zip(self.idle, gauges, strict=True)
            ]
        return [value - idle for value, idle in zip(gauges, self.idle, strict=True)]
