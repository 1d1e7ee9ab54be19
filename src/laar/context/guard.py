"""Decide whether reordering pays off on a route: compare cached shares with and without it.

A comparison with a control group would overestimate the gain, since a small group shares prefixes
only within itself. Instead all documents pass through two simulated caches, one in the order sent
and one in the order received. The gain is the difference in expected hits. Routing and eviction
lose some hits in either order, so the difference is scaled by a regression of reported on expected
shares, which includes windows in which new conversations keep their order. A route stops
reordering if its gain plus two standard errors is below the minimum.

Each conversation counts once, with its mean, and stays in its group with all its turns and
retries. Otherwise a few popular questions would decide. De-duplication always saves the text that
it removes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from laar.latest import Latest

MAX_CONVERSATIONS = 2048
"""Number of recent conversations remembered for each mean (0.2 KB each). An older conversation that
continues is treated as new."""

MAX_SIDES = 20_000
"""Number of conversations whose group is remembered; others join the current window's."""

MIN_GAIN = 0.01
"""Minimum increase in the cached share of prompt tokens; a smaller increase does not justify
changing prompts. Below it, the route switches itself off."""

MIN_REQUESTS = 200
"""Conversations with reported usage needed to judge the gain. Requests with the same first text are
one conversation."""

WINDOW = 50
"""Number of new conversations per window, enough for them to share orders."""

_PRIOR = 0.01  # weight of the prior assumption that all expected hits occur


@dataclass(slots=True)
class MeanOfMeans:
    """Mean of the means of conversations, with its squared standard error."""

    n: int = 0
    _sum: float = 0.0
    _squares: float = 0.0
    _open: Latest[int, tuple[int, float]] = field(default_factory=lambda: Latest(MAX_CONVERSATIONS))

    @property
    def mean(self) -> float:
        """Return the mean, or 0 if there are no values."""
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
        """Return the squared standard error of the mean; 0 for a single conversation."""
        if self.n < 2:
            return 0.0
        return max(0.0, self._squares / self.n - self.mean**2) / (self.n - 1)


class GainGuard:
    """Decides whether reordering continues on a route.

    Args:
        share: share of conversations left in their order, in windows; 0 disables the guard.

    Attributes:
        off: reordering was switched off, since it gains too little.
        ahead: by how much expected hits exceed those in the received order.
    """

    def __init__(self, *, share: float) -> None:
        self._share = share
        self._sides: Latest[int, bool] = Latest(MAX_SIDES)
        self.off = False
        self.ahead = MeanOfMeans()
        self._begun = 0
        # Sums, over answers, of pairwise products of 1, the expected share and the reported share.
        self._products = np.zeros((3, 3))

    def holds_out(self, conversation: int) -> bool:
        """Return whether a conversation, given its hash, began in a window left in order."""
        side = self._sides.get(conversation)
        if side is None:
            self._begun += 1
            side = self._begun * self._share / WINDOW % 1.0 >= 1.0 - self._share
            self._sides[conversation] = side
        return side

    def record(
        self, conversation: int, *, found: float, expected: float, ahead: float | None
    ) -> None:
        """Record the usage of an answer, as shares of its prompt.

        Args:
            conversation: hash of its beginning.
            found: share that the engine found in its cache.
            expected: expected share in the order sent.
            ahead: `expected` minus the share for the received order; None if that order was kept.
        """
        row = 1.0, expected, min(1.0, max(0.0, found))
        self._products += np.outer(row, row)
        if ahead is None:
            return
        self.ahead.add(conversation, ahead)
        gain, error = self.gain()
        if self._share and self.ahead.n >= MIN_REQUESTS and gain + 2 * error < MIN_GAIN:
            self.off = True

    def gain(self) -> tuple[float, float]:
        """Return the increase in the cached share due to reordering, and its standard error.

        This is the number of reported hits per expected hit, times `ahead`.
        """
        n, sums = max(1.0, self._products[0, 0]), self._products[0, 1:]
        (xx, xy), (_, yy) = self._products[1:, 1:] - np.outer(sums, sums) / n + _PRIOR
        slope, ahead = min(max(xy / xx, 0.0), 1.5), self.ahead.mean
        unsure = max(0.0, yy - xy * xy / xx) / max(1.0, n - 2.0) / xx
        error = math.sqrt(slope**2 * self.ahead.error_squared() + ahead**2 * unsure)
        return float(slope * ahead), error
