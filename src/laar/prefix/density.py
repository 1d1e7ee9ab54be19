"""Bytes of prompt per token, from the prompt lengths that engines report.

The index counts bytes, while an engine's cache counts tokens. English prose has four bytes per
token; code, JSON, and most languages have fewer, and an index that overestimates a cache by a
factor of two expects prefixes that were evicted long ago.
"""

from __future__ import annotations

_PRIOR_TOKENS = 20_000.0
"""Weight in tokens of the fleet's mean in a slot's density, and of the first guess in the mean."""
_MEMORY_TOKENS = 2_000_000.0
"""Tokens after which earlier prompts have half their weight, since traffic changes."""
_LEAST, _MOST = 0.25, 16.0
"""Bounds: an image has many tokens in few bytes, and an engine's report may be wrong."""


class Density:
    """Bytes per token, by slot.

    Args:
        first: bytes per token for all slots, before any report.
    """

    def __init__(self, first: float) -> None:
        self._all = [first * _PRIOR_TOKENS, _PRIOR_TOKENS]
        self.sums: dict[int, list[float]] = {}
        """Bytes and tokens, by slot."""

    @property
    def mean(self) -> float:
        """Mean bytes per token over all slots."""
        return _bounded(self._all[0] / self._all[1])

    def of(self, slot: int) -> float:
        """Return a slot's density, which is close to the mean while it has few samples."""
        total_bytes, tokens = self.sums.get(slot, (0.0, 0.0))
        return _bounded((total_bytes + self.mean * _PRIOR_TOKENS) / (tokens + _PRIOR_TOKENS))

    def learn(self, slot: int, total_bytes: int, tokens: int) -> None:
        """Learn that a prompt of `total_bytes` bytes had `tokens` tokens; both are positive."""
        for sums in (self._all, self.sums.setdefault(slot, [0.0, 0.0])):
            sums[0] += total_bytes
            sums[1] += tokens
            if sums[1] > _MEMORY_TOKENS:
                sums[0] *= 0.5
                sums[1] *= 0.5

    def drop(self, slot: int) -> None:
        """Forget a slot."""
        self.sums.pop(slot, None)


def _bounded(density: float) -> float:
    return min(_MOST, max(_LEAST, density))
