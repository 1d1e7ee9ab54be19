"""Choose the answers to read in the native shape."""

from __future__ import annotations

import math
import random

CHUNKS_PER_S = 1000.0
"""Chunks per second above which only `share` of the answers are read. Each chunk costs a message
each way, 40 to 100 us of CPU, so answers of thousands of tokens would take half a core. With half
this limit, the mean TTFT of a two-speed fleet (`native-devices`) is 6 % longer than without a
limit; with this limit, it is not."""

_LONGEST_DEBT_S = 30.0


class Sampler:
    """Chooses the answers to read: a share of them, and usually one at least every `every_s`.

    Reading costs a message per chunk. With little traffic a share alone would give the learners too
    few answers, so one is also read if none was read for `every_s`, unless recent answers had so
    many chunks that it would cost too much.

    Args:
        share: share of answers to read, 0 to 1; 0 reads none. May be changed.
        every_s: seconds after which another answer is read, whatever the share. May be changed.
    """

    def __init__(self, share: float, *, every_s: float, rng: random.Random) -> None:
        self.share = share
        self.every_s = every_s
        self._rng = rng
        self._last = -math.inf
        self._paid_at = -math.inf
        """Time by which the chunks read so far would have arrived at `CHUNKS_PER_S`."""

    def draw(self, now: float) -> bool:
        """Return whether to read the answer to a request that begins at `now`."""
        is_due = now - self._last > self.every_s and now >= self._paid_at
        if self._rng.random() < self.share or (self.share and is_due):
            self._last = now
            return True
        return False

    def read(self, chunks: int, now: float) -> None:
        """Record that `chunks` of an answer were read."""
        paid_at = max(self._paid_at, now) + chunks / CHUNKS_PER_S
        self._paid_at = min(paid_at, now + _LONGEST_DEBT_S)
