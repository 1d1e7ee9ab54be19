"""The latest outcomes of an endpoint, as counts that fade."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = 12.0
"""Outcomes in the counts: enough to distinguish a third from a tenth, few enough to be quick."""

HALF_LIFE_S = 30.0
"""Seconds after which an outcome counts half. About the time of a restart: older outcomes may be
another process's."""

_GRAIN_S = 0.1  # time passes in steps


@dataclass(slots=True, eq=False)
class Recent:
    """Good and bad outcomes among the last `WINDOW`, each counting half after a half-life."""

    good: float = 0.0
    bad: float = 0.0
    _at: float = 0.0

    def add(self, now: float, *, good: float = 0.0, bad: float = 0.0) -> None:
        """Counts outcomes; the older ones make room for them."""
        self.fade(now)
        self.good += good
        self.bad += bad
        total = self.good + self.bad
        if total > WINDOW:
            self.good *= WINDOW / total
            self.bad *= WINDOW / total

    def fade(self, now: float) -> None:
        """Brings the counts up to this moment."""
        elapsed_s = now - self._at
        if elapsed_s > _GRAIN_S:
            factor = 0.5 ** (elapsed_s / HALF_LIFE_S)
            self.good *= factor
            self.bad *= factor
            self._at = now
