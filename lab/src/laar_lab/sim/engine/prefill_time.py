"""The time of a prefill: algorithm 3 of the Medha paper (appendix A.3).

A prefill of n tokens runs in chunks that shrink as its context grows, because each chunk is the
largest whose predicted time fits one iteration. The total therefore requires a simulation. It runs
once per model and gives a table of seconds at 0, delta, 2 delta ... L_max tokens, in which look-ups
interpolate. All lengths begin with the same chunks, so one simulation of L_max prices them all.

Below one delta, the fixed cost of an iteration is spread evenly over the tokens. Beyond L_max, the
last slope is extended, which gives a lower bound if the cost is quadratic. A chunk is never smaller
than `MIN_CHUNK_TOKENS`: if even that does not fit the target, the paper's simulation stops early
and reports too little time, while this one accepts the longer iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from laar.errors import SettingError
from laar_vllm.packing import largest_chunk

ChunkSeconds = Callable[[int, int], float]
"""(chunk_tokens, context_tokens) -> seconds of an iteration that runs only this chunk."""

MAX_TOKENS = 1_048_576
"""The longest prompt of models served today; longer ones are extrapolated."""

DELTA_TOKENS = 1024
"""The paper's granularity, at which the table for 1M tokens takes 8 KiB."""

MAX_CHUNK_TOKENS = 8192
"""Largest token budget per step in common use (vLLM's default on a large GPU)."""

MIN_CHUNK_TOKENS = 32


class PrefillTable:
    """Prefill seconds by prompt length, for one model on one kind of endpoint.

    Args:
        seconds: float64[k], totals at 0, delta, 2 delta ... (`DELTA_TOKENS`), which start at 0 and
            never decrease.

    Raises:
        SettingError: the values are not finite, do not start at 0, or decrease.
    """

    __slots__ = ("_array", "_last", "_totals")

    def __init__(self, seconds: NDArray[np.float64]) -> None:
        fits = len(seconds) >= 2 and bool(np.all(np.isfinite(seconds)))
        if not fits or seconds[0] != 0.0 or bool(np.any(np.diff(seconds) < 0.0)):
            raise SettingError(
                "prefill time: the engine's constants give a time that is not finite or falls as "
                "the prompt grows"
            )
        self._array = np.ascontiguousarray(seconds, dtype=np.float64)
        self._totals: list[float] = self._array.tolist()  # indexing a list is 4x faster than numpy
        self._last = len(seconds) - 2

    @classmethod
    def build(
        cls,
        chunk_seconds: ChunkSeconds,
        *,
        target_s: float = 0.020,
        max_tokens: int = MAX_TOKENS,
    ) -> Self:
        """Simulate a prefill in adaptive chunks of at most `target_s` each.

        `chunk_seconds` must be cheap: it is called about 10 times per chunk.
        """
        grid = range(DELTA_TOKENS, max_tokens + DELTA_TOKENS, DELTA_TOKENS)
        totals = [0.0]
        done, spent = 0, 0.0
        for length in grid:
            while True:
                context = done
                chunk = max(
                    MIN_CHUNK_TOKENS,
                    largest_chunk(
                        lambda tokens: chunk_seconds(tokens, context),  # noqa: B023 (called at once)
                        target_s,
                        MAX_CHUNK_TOKENS,
                        MIN_CHUNK_TOKENS,
                    ),
                )
                if done + chunk > length:
                    break
                spent += chunk_seconds(chunk, done)
                done += chunk
            rest = length - done
            totals.append(spent + (chunk_seconds(rest, done) if rest else 0.0))
        # A truncated last chunk can cost slightly more than the next point's full chunk.
        return cls(np.maximum.accumulate(np.array(totals)))

    def total_s(self, tokens: float) -> float:
        """Return the seconds of a prefill of `tokens` from an empty cache; 0 for 0 tokens."""
        if tokens <= 0:
            return 0.0
        position = tokens / DELTA_TOKENS
        index = int(position)
        if index > self._last:
            index = self._last
        totals = self._totals
        low = totals[index]
        return low + (position - index) * (totals[index + 1] - low)

    def remaining_s(self, total_tokens: float, done_tokens: float) -> float:
        """Return the seconds left after `done_tokens` are computed or cached; never negative."""
        if done_tokens >= total_tokens:
            return 0.0
        return self.total_s(total_tokens) - self.total_s(done_tokens)

    def totals_s(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return `total_s` for each entry of float64[n], as float64[n]."""
        position = np.maximum(tokens, 0.0) / DELTA_TOKENS
        index = np.minimum(position.astype(np.int64), self._last)
        low = self._array[index]
        seconds: NDArray[np.float64] = low + (position - index) * (self._array[index + 1] - low)
        return seconds
