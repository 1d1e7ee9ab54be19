"""The sample of answers that are read as they pass, in the native shape."""

from __future__ import annotations

import math
import random

__all__ = ["Sampler"]


class Sampler:
    """The choice of the answers to read: a share of them, and one at least every `every_s`.

    Reading costs a message for each chunk of the answer. Where traffic is thin that is nothing, and
    the learners would starve on a share of it; where it is thick, the share bounds the cost.

    Args:
        share: share of the requests, 0 to 1; 0 reads none; may be changed.
        every_s: seconds without one after which an answer is read; may be changed.
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
