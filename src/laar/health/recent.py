"""An endpoint's recent outcomes as fading counts, and their comparison with its siblings'.

A 401 may be due to a client's wrong key or to the one endpoint that was started with a key; an
answer cut off in the middle may mean that a client disconnected or that an engine died. The
behavior of siblings tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable

WINDOW = 12.0
"""Effective number of outcomes: enough to tell 1/3 from 1/10, few enough to react fast."""

HALF_LIFE_S = 30.0
"""Seconds after which an outcome has half its weight. About as long as a restart takes: older
outcomes may come from a previous process."""

_HABIT_HALF_LIFE_S = 60.0
_LEAST = 2.7
"""Occurrences that make a habit: three, slightly faded."""
_SUSPECT = 1.8
"""Occurrences after which an endpoint should pause until siblings' outcomes are known."""
_HABIT = 0.7
"""Share of bad outcomes above which they are a habit; below it, clients may be the cause."""
_ROW = 4
"""Consecutive outcomes that show that a habit has changed."""
_QUIET_S = 30.0
_RARE = 0.2
"""Share below which a sibling does not have the habit."""
_EVIDENCE = 3.5
"""Number of a sibling's outcomes that is enough evidence: four, slightly faded."""


class Recent:
    """Good and bad outcomes among the last `WINDOW`; their weights halve after a half-life."""

    half_life_s = HALF_LIFE_S
    grain_s = 0.1
    """Resolution of time in seconds: `fade` is called for every request."""

    def __init__(self) -> None:
        self.good = 0.0
        self.bad = 0.0
        self._at = 0.0

    @property
    def total(self) -> float:
        """Sum of both counts."""
        return self.good + self.bad

    def add(self, now: float, *, good: float = 0.0, bad: float = 0.0) -> None:
        """Add outcomes, displacing older ones; negative counts retract earlier outcomes."""
        self.fade(now)
        self.good = max(0.0, self.good + good)
        self.bad = max(0.0, self.bad + bad)
        if self.total > WINDOW:
            scale = WINDOW / self.total
            self.good *= scale
            self.bad *= scale

    def fade(self, now: float) -> None:
        """Fade the counts to `now`."""
        elapsed_s = now - self._at
        if elapsed_s > self.grain_s:
            factor = 0.5 ** (elapsed_s / self.half_life_s)
            self.good *= factor
            self.bad *= factor
            self._at = now


class Habit(Recent):
    """Counts something that may be the client's fault: `bad` if it happened, `good` if not."""

    half_life_s = _HABIT_HALF_LIFE_S
    grain_s = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.row = 0
        """Number of consecutive occurrences."""
        self.row_at = float("-inf")
        """When that streak began."""
        self.last_at = float("-inf")
        """Time of the last occurrence."""

    def note(self, now: float, *, happened: bool) -> None:
        """Count one outcome."""
        self.fade(now)
        total = self.good + self.bad
        if total >= WINDOW:
            self.good *= (WINDOW - 1.0) / total
            self.bad *= (WINDOW - 1.0) / total
        if not happened:
            self.good += 1.0
            self.row = 0
            return
        self.bad += 1.0
        self.row += 1
        self.last_at = now
        if self.row == 1:
            self.row_at = now

    def is_evidence(self, now: float) -> bool:
        """Return whether there is enough evidence for a comparison."""
        self.fade(now)
        return self.total >= _EVIDENCE

    def is_quiet(self, now: float) -> bool:
        """Return whether it hardly ever happens, and has not happened recently."""
        self.fade(now)
        return self.bad <= _RARE * self.total and now - self.last_at > _QUIET_S


def alone(own: Habit, siblings: Iterable[Habit], now: float) -> bool | None:
    """Return whether an endpoint nearly always does something that a sibling hardly ever does.

    One such sibling is enough: siblings have the same clients.

    Return None if the endpoint does it but nothing is known about its siblings yet.
    """
    own.fade(now)
    usual = own.bad >= _HABIT * own.total
    habit = usual and own.bad >= _LEAST
    suspect = usual and own.bad >= _SUSPECT
    if not suspect and own.row < _ROW:
        return False
    known = list(siblings)
    heard = [other for other in known if other.is_evidence(now)]
    if suspect and known and not heard:
        return None
    # A single client that is always wrong may follow its prefix from endpoint to endpoint, so a
    # streak counts only if most of the others have had nothing of the kind.
    sound = sum(
        (habit or now - other.last_at > _QUIET_S) and other.bad < _RARE * other.total
        for other in heard
    )
    return sound > 0 if habit else own.row >= _ROW and 2 * sound > len(heard)
