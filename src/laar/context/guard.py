"""Decide whether reordering pays on a route: the cached share of prompts with and without it.

Comparing with a control group would flatter the hook, since a small group can only share prefixes
with itself. Instead all documents pass through two simulated caches, one in the order sent and one
in the order received. The gain is the difference in expected hits, scaled to reported hits by a
regression of reported on expected shares, because routing and eviction lose part of both. The
regression includes windows in which new conversations are left unchanged. A route is switched off
if its gain plus two standard errors is below the minimum, or if its answers are reported to be
worse than without reordering; it stays off until `reset`.

A conversation counts once, by its mean, and stays in its group with all turns and retries.
Otherwise the difficulty of a few popular questions would decide.

De-duplication always saves the text it removes, so only its harm is measured: a share of the
conversations tries it, and once reported outcomes show no harm, all but that share get it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from laar.latest import Latest

MAX_CONVERSATIONS = 2048
"""Recent conversations kept per mean, about 0.2 KB each. An older one that continues counts as
new."""

MAX_SIDES = 20_000
"""Conversations whose group is remembered; older ones join the group of the current window."""

HARM_ERRORS = 3.0
"""Standard errors by which answers must be worse. The test repeats after each outcome, so chance
would exceed two sooner or later."""

MIN_GAIN = 0.01
"""Minimum increase in the cached share of prompt tokens, since less does not justify changing
prompts. Below it the route switches itself off."""

MIN_REQUESTS = 200
"""Conversations with reported usage needed to judge the gain. Requests with the same first text are
one conversation."""

MIN_OUTCOMES = 50
"""Conversations per side with reported outcomes needed to compare correctness."""

WINDOW = 50
"""New conversations per window: enough to share orders with each other."""

_PRIOR = 0.01  # weight of the prior that all expected hits occur


@dataclass(slots=True)
class MeanOfMeans:
    """Mean over conversations of the mean of each one's values, with its squared standard error."""

    n: int = 0
    _sum: float = 0.0
    _squares: float = 0.0
    _open: Latest[int, tuple[int, float]] = field(default_factory=lambda: Latest(MAX_CONVERSATIONS))

    @property
    def mean(self) -> float:
        """Return the mean; 0 without values."""
        return self._sum / self.n if self.n else 0.0

    def add(self, conversation: int, value: float) -> None:
        """Add a value of a conversation."""
        count, before = self._open.get(conversation, (0, 0.0))
        mean = before + (value - before) / (count + 1)
        self.n += not count
        self._sum += mean - before
        self._squares += mean * mean - before * before
        self._open[conversation] = (count + 1, mean)

    def error_squared(self) -> float:
        """Return the squared standard error of the mean; 0 with only one conversation."""
        if self.n < 2:
            return 0.0
        return max(0.0, self._squares / self.n - self.mean**2) / (self.n - 1)


@dataclass(slots=True)
class _Sides:
    """Shares of correct answers to changed prompts and to unchanged ones."""

    changed: MeanOfMeans = field(default_factory=MeanOfMeans)
    left: MeanOfMeans = field(default_factory=MeanOfMeans)

    def harms(self) -> bool | None:
        """Return whether answers are significantly worse; None if too few are known.

        The error is that of equally good sides, since 50 correct answers of 50 have no variance.
        """
        changed, left = self.changed, self.left
        if min(changed.n, left.n) < MIN_OUTCOMES:
            return None
        share = (changed.mean * changed.n + left.mean * left.n) / (changed.n + left.n)
        error = math.sqrt(share * (1.0 - share) * (1.0 / changed.n + 1.0 / left.n))
        return changed.mean - left.mean < -HARM_ERRORS * error


@dataclass(slots=True)
class _Route:
    ahead: MeanOfMeans = field(default_factory=MeanOfMeans)
    products: np.ndarray = field(default_factory=lambda: np.zeros((3, 3)))
    """Sums over answers of the pairwise products of 1, the expected and the reported share."""
    moved: _Sides = field(default_factory=_Sides)
    noted: _Sides = field(default_factory=_Sides)
    begun: int = 0
    off: bool = False
    harm: bool = False
    dedup: str = "trial"

    def gain(self) -> tuple[float, float]:
        """Return gain (reported hits per expected hit, times the lead) and standard error."""
        n, sums = max(1.0, self.products[0, 0]), self.products[0, 1:]
        (xx, xy), (_, yy) = self.products[1:, 1:] - np.outer(sums, sums) / n + _PRIOR
        slope, ahead = min(max(xy / xx, 0.0), 1.5), self.ahead.mean
        unsure = max(0.0, yy - xy * xy / xx) / max(1.0, n - 2.0) / xx
        error = math.sqrt(slope**2 * self.ahead.error_squared() + ahead**2 * unsure)
        return float(slope * ahead), error


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteGain:
    """Measurements of a route; means over conversations.

    Args:
        gain: cached share of prompts that the received order would have missed.
        error: its standard error.
        seen: number of conversations averaged.
        off: whether reordering was switched off.
        harm: whether it was switched off because answers were worse.
        treated_correct: share of correct answers among reported outcomes; None without any.
        left_alone_correct: the same for unchanged prompts.
        dedup: state of de-duplication: ``trial``, ``on`` or ``off``.
    """

    gain: float
    error: float
    seen: int
    off: bool
    harm: bool
    treated_correct: float | None
    left_alone_correct: float | None
    dedup: str


class GainGuard:
    """Decides for each route whether reordering and de-duplication continue.

    Args:
        share: share of conversations left unchanged, in windows, and of others de-duplicated on
            trial; 0 disables the guard.
    """

    def __init__(self, *, share: float) -> None:
        self._share = share
        self._routes: dict[str, _Route] = {}
        self._sides: Latest[int, bool] = Latest(MAX_SIDES)

    def holds_out(self, route: str, conversation: int) -> bool:
        """Return whether a conversation, given its hash, began in an unchanged window."""
        side = self._sides.get(conversation)
        if side is None:
            of = self._of(route)
            of.begun += 1
            side = of.begun * self._share / WINDOW % 1.0 >= 1.0 - self._share
            self._sides[conversation] = side
        return side

    def is_off(self, route: str) -> bool:
        """Return whether reordering was switched off for a route."""
        return route in self._routes and self._routes[route].off

    def dedups(self, route: str, conversation: int) -> bool:
        """Return whether repeated documents of a conversation are replaced by notes."""
        state = self._of(route).dedup
        if state == "off" or not self._share:
            return False
        chosen = (conversation >> 40) % 10_000 < self._share * 10_000
        return chosen == (state == "trial")

    def record(
        self, route: str, conversation: int, *, found: float, expected: float, ahead: float | None
    ) -> None:
        """Record the usage of an answer, as shares of its prompt.

        Args:
            route: route of the request.
            conversation: hash of its beginning.
            found: share that the engine found in its cache.
            expected: expected share in the order sent.
            ahead: lead of `expected` over the received order; None if that order was kept.
        """
        of = self._of(route)
        row = 1.0, expected, min(1.0, max(0.0, found))
        of.products += np.outer(row, row)
        if ahead is None:
            return
        of.ahead.add(conversation, ahead)
        gain, error = of.gain()
        if self._share and of.ahead.n >= MIN_REQUESTS and gain + 2 * error < MIN_GAIN:
            of.off = True

    def record_outcome(
        self,
        route: str,
        conversation: int,
        *,
        held_out: bool,
        deduplicated: bool | None,
        correct: bool,
    ) -> None:
        """Record whether an answer was correct.

        Args:
            route: route of the request.
            conversation: hash of its beginning.
            held_out: whether its documents were left as received.
            deduplicated: whether notes replaced repeated documents; None if none are repeated.
            correct: the reported outcome.
        """
        of = self._of(route)
        (of.moved.left if held_out else of.moved.changed).add(conversation, float(correct))
        if of.moved.harms():
            of.off = of.harm = True
        if deduplicated is None:
            return
        (of.noted.changed if deduplicated else of.noted.left).add(conversation, float(correct))
        if (harms := of.noted.harms()) is not None:
            of.dedup = "off" if harms or of.dedup == "off" else "on"

    def _of(self, route: str) -> _Route:
        return self._routes.setdefault(route, _Route())

    def reset(self, route: str) -> None:
        """Forget a route and switch it on again."""
        self._routes.pop(route, None)

    def gains(self) -> dict[str, RouteGain]:
        """Return the gains by route."""
        return {
            name: RouteGain(
                gain=of.gain()[0],
                error=of.gain()[1],
                seen=of.ahead.n,
                off=of.off,
                harm=of.harm,
                treated_correct=of.moved.changed.mean if of.moved.changed.n else None,
                left_alone_correct=of.moved.left.mean if of.moved.left.n else None,
                dedup=of.dedup,
            )
            for name, of in self._routes.items()
        }
