"""How late this picker reads what happens.

A picker without CPU time, or with a busy event loop, reads events late, and then many at once: an
answer seems to pause and to end in no time, and a probe that was answered to run into its timeout.
So a time says nothing about an endpoint if the picker was late by over a tenth of it.
"""

from __future__ import annotations

import math

TICK_S = 0.05
"""Seconds between calls of `Lateness.tick`. The picker may be late by as much unnoticed."""
LEAST_S = 0.01
"""How late timers are without any reason."""


class Lateness:
    """The lateness of one picker; it is on time until `tick` is called for the first time.

    Attributes:
        on_time_until: until when `now_s` is 0, so that most readings need no call.
    """

    def __init__(self) -> None:
        self.on_time_until = self._due_at = math.inf
        self._late_s = 0.0

    def tick(self, now: float) -> float:
        """Note that the picker has a turn; return by how many seconds that is late."""
        late_s = self._late_s = max(0.0, now - self._due_at)  # until what came meanwhile is read
        self._due_at = now + TICK_S
        self.on_time_until = -math.inf if late_s > LEAST_S else self._due_at + LEAST_S
        return late_s

    def now_s(self, now: float) -> float:
        """Return for how many seconds what is read now may have waited."""
        return 0.0 if now <= self.on_time_until else max(self._late_s, now - self._due_at)

    def spoils(self, took_s: float, now: float) -> bool:
        """Return whether a time that is measured now says nothing."""
        return is_spoiled(took_s, self.now_s(now))


def is_spoiled(took_s: float, late_s: float) -> bool:
    """Return whether a time says nothing, of which the picker was so late."""
    return late_s > 0.1 * took_s
