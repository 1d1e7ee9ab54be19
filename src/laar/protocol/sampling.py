"""The sample of answers that are read as they pass, in the native shape."""

from __future__ import annotations

import math
import random

CHUNKS_PER_S = 1000.0
"""Chunks a second above which answers are read for their share only. Each costs a message both
ways, 40 to 100 us of CPU, so answers of thousands of tokens would take half of a core. With half
as many the mean TTFT of a fleet of two speeds (`native-devices`) is 6 % longer, with these none."""

_LONGEST_DEBT_S = 30.0


class Sampler:
    """The choice of the answers to read: a share of them, and one at least every `every_s`.

    Reading costs a message for each chunk of the answer. Where traffic is thin the learners would
    starve on a share of it, so an answer is read after a while without one, unless those that were
    read had so many chunks that it would cost too much.

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
        self._paid_at = -math.inf
        """When the chunks that were read are worth no more than `CHUNKS_PER_S`."""

    def draw(self, now: float) -> bool:
        """Return whether to read the answer of the request that begins now."""
        is_due = now - self._last > self.every_s and now >= self._paid_at
        if self._rng.random() < self.share or (self.share and is_due):
            self._last = now
            return True
        return False

    def read(self, chunks: int, now: float) -> None:
        """Count chunks of an answer."""
        paid_at = max(self._paid_at, now) + chunks / CHUNKS_PER_S
        self._paid_at = min(paid_at, now + _LONGEST_DEBT_S)
