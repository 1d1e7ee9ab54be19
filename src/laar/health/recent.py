"""An endpoint's recent outcomes as fading counts, and their comparison with its siblings'.

A 401 may be due to a client's wrong key or to the one endpoint that was started with a key; an
answer cut off in the middle may mean that a client disconnected or that an engine died. The
behavior of siblings tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log

WINDOW = 12.0
"""Effective number of outcomes: enough to tell 1/3 from 1/10, few enough to react fast."""

HALF_LIFE_S = 30.0
"""Seconds after which an outcome has half its weight. About as long as a restart takes: older
outcomes may come from a previous process."""

_HABIT_HALF_LIFE_S = 60.0
_SUSPECT = 1.8
"""Occurrences after which an endpoint should pause until siblings' outcomes are known."""
_HABIT = 0.7
"""Share of bad outcomes above which they may be a habit."""
_RAREST, _PRIOR = 0.05, 0.3
"""Least assumed share of bad outcomes, and how many siblings are assumed to have had already."""
_SURE = 8.0
"""Logarithm of a likelihood ratio that no client explains: three outcomes that siblings never have,
or a dozen that half of theirs are. By chance it is reached once in 3,000 outcomes."""
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
        if now - self._at > self.grain_s:
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


def stands_out(own: Habit, siblings: Iterable[Habit], now: float) -> bool | None:
    """Return whether an endpoint does something more often than chance and its siblings explain.

    The test is a likelihood ratio: of its outcomes by its own rate, and by the rate of the better
    half of its siblings, which have the same clients. Its last streak is tested too: a habit may be
    new.

    Return None if the endpoint does it but nothing is known about its siblings yet.
    """
    own.fade(now)
    known = list(siblings)
    heard = [(s.bad, s.good) for s in known if s.is_evidence(now)]
    if not heard:
        return None if known and own.bad >= max(_SUSPECT, _HABIT * own.total) else False
    return is_unusual((own.bad, own.good), heard, min(own.row, own.bad))


def is_unusual(
    own: tuple[float, float], others: Iterable[tuple[float, float]], row: float = 0.0
) -> bool:
    """Return whether bad and good outcomes, of which the last `row` are bad, are unlike others'."""
    heard = sorted((b / (b + good), b, b + good) for b, good in others if b + good)
    better = heard[: (len(heard) + 1) // 2]
    bad, total = (sum(each[which] for each in better) for which in (1, 2))
    usual = max(_RAREST, (bad + _PRIOR) / (total + 1.0))
    likely = likelihood(*own, usual)
    return total >= _EVIDENCE and max(likely, (likely > 0.0) * row * log(1.0 / usual)) >= _SURE


def likelihood(bad: float, good: float, usual: float = _RAREST) -> float:
    """Return the logarithm of the ratio of outcomes' likelihoods by their own and the usual share.

    It is 0 if fewer than usual are bad.
    """
    share = bad / max(bad + good, 1e-9)
    if share <= usual:
        return 0.0
    own = good * log((1.0 - share) / (1.0 - usual)) if good else 0.0
    return bad * log(share / usual) + own
