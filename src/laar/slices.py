"""Divide long work into time slices, between which the event loop serves requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

SLICE_S = 0.002
"""Seconds of work that nobody waits for, until requests have a turn of the event loop."""


class Slice:
    """The current time slice of some work. Each step of the work should take at most 1 ms."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or monotonic
        self._end = self._clock() + SLICE_S

    def is_over(self) -> bool:
        """Return whether the rest of the work should wait."""
        return self._clock() >= self._end

    async def step(self) -> None:
        """Call this after each step: it lets others run if the slice is over."""
        if self.is_over():
            await asyncio.sleep(0)
            self._end = self._clock() + SLICE_S
