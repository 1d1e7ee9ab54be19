"""Which answers are read as they pass, in the native shape."""

from __future__ import annotations

import math
import random

__all__ = ["Sampler"]


class Sampler:
    """Which answers are read: a share of them, and at least one in a while.

    Reading costs a message for each chunk of the answer. Where traffic is thin that is nothing, and
    the learners would starve on a share of it; where it is thick, the share bounds the cost.

    Args:
        share: of the requests, 0 to 1; 0 reads none; may be changed.
        every_s: an answer is read when none was for so long; may be changed.
        rng: draws.
    """

    def __init__(self, share: float, *, every_s: float, rng: random.Random) -> None:
        self.share = share
        self.every_s = every_s
        self._rng = rng
        self._last = -math.inf

    def draw(self, now: float) -> bool:
        """Whether to read the answer of the request that begins now."""
        if self._rng.random() < self.share or (self.share and now - self._last > self.every_s):
            self._last = now
            return True
        return False
