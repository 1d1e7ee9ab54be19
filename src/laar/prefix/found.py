"""How much of what is believed cached each engine finds.

Some engines never reuse a prefix: caching is off, or the model's state can't be cached. Whatever is
recorded for them is believed in vain, and prompts that share a prefix crowd at a few endpoints. So
beliefs are multiplied by the share of them that recent answers confirmed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_KEPT = 0.85
"""Weight of earlier answers at each new one: after five misses in a row a tenth is believed."""
_FOUND = 0.8
"""Share of a belief that confirms it: tokens per byte differ between the parts of a prompt."""


class Found:
    """The share of beliefs that engines confirm, by slot."""

    def __init__(self) -> None:
        self._sums: npt.NDArray[np.float64] = np.ones((2, 0))  # found, believed
        self.shares: npt.NDArray[np.float64] = np.ones(0)
        """Share of what is believed that is found, in 0..1, by slot; read only."""

    def learn(self, slot: int, believed: float, found: float) -> None:
        """Learn from an answer.

        Args:
            slot: the endpoint.
            believed: share of the prompt that should have been cached, in 0..1.
            found: share that was.
        """
        found = believed if found >= _FOUND * believed else found
        sums = self._sums[:, slot]
        sums *= _KEPT
        sums += found, believed
        self.shares[slot] = sums[0] / sums[1]

    def resize(self, slots: int) -> None:
        """Grow to `slots` slots; a smaller number has no effect."""
        more = max(0, slots - len(self.shares))
        self._sums = np.pad(self._sums, ((0, 0), (0, more)), constant_values=1.0)
        self.shares = np.pad(self.shares, (0, more), constant_values=1.0)

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self._sums[:, slot] = self.shares[slot] = 1.0
