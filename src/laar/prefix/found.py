"""How much of what is believed cached each engine finds.

Some engines never reuse a prefix: caching is off, or the model's state can't be cached. Whatever is
recorded for them is believed in vain, and prompts that share a prefix crowd at a few endpoints. So
beliefs are multiplied by the share of them that recent answers confirmed.

An answer's usage says what was found. For engines that don't report it, the counters on the metrics
page do: if none of the tokens looked up during a request were found, its prompt wasn't either.
Of an engine that says neither, nothing is ever known: once an answer says nothing, or should have
shown a find, and none like it ever did, a prompt in flight there isn't believed cached
(`laar.prefix.beliefs`), so idle siblings get copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Counted = tuple[float, float]
"""Tokens that an engine has looked up in its cache, and those of them that it found."""
Floats = npt.NDArray[np.float64]
Slots = npt.NDArray[np.intp]

_KEPT = 0.85
"""Weight of earlier answers at each new one: after five misses in a row a tenth is believed."""
_MAX_AWAITED = 64  # answers per slot that await a reading
_FOUND = 0.8
"""Share of a belief that confirms it: tokens per byte differ between the parts of a prompt."""


class FoundShares:
    """The share of beliefs that engines confirm, by slot.

    Engines alike (with the same model) are the prior for each other: an endpoint that has not yet
    disproved what is believed must not look better than those that have.
    """

    def __init__(self) -> None:
        self.sums: Floats = np.zeros((3, 0))
        """Found, believed, and weight of the prior, by slot."""
        self.shares: Floats = np.ones(0)
        """Share of what is believed that is found, in 0..1, by slot; read only."""
        self.reuses: npt.NDArray[np.int8] = np.zeros(0, np.int8)
        """By slot, 1 once an engine like it was seen to find anything; -1 if answers
        don't say, or should have shown that, and none did."""
        self.alike: Callable[[int], Slots] = lambda _slot: np.arange(len(self.shares))
        """Returns the slots whose engines are like that of a slot, itself included."""
        self.counted: dict[int, Counted] = {}
        """The latest counters, by slot."""
        self._reports: set[int] = set()  # slots whose answers' usage says what was found
        self._awaited: dict[int, list[tuple[Counted, float]]] = {}

    def answered(
        self, slot: int, believed: float, found: float | None, before: Counted | None
    ) -> None:
        """Learn from an answer.

        Args:
            slot: the endpoint.
            believed: share of the prompt that should have been cached, in 0..1.
            found: share that was; None if not reported.
            before: the counters when the request was sent, if known.
        """
        if found is not None:
            self._reports.add(slot)
            self._learn(slot, believed, found)
        elif before is not None and slot not in self._reports:
            awaited = self._awaited.setdefault(slot, [])
            if len(awaited) < _MAX_AWAITED:
                awaited.append((before, believed))

    def count(self, slot: int, queries: float, hits: float) -> None:
        """Learn from the counters of tokens that an engine looked up and found in its cache."""
        if not (math.isfinite(queries) and math.isfinite(hits)):
            return
        self.counted[slot] = queries, hits
        if hits > 0.0:
            self.saw(slot, found=True)
        for before, believed in self._awaited.pop(slot, ()):
            if queries != before[0]:  # some may be other requests' hits: the benefit of the doubt
                self._learn(slot, believed, believed if hits != before[1] else 0.0)

    def saw(self, slot: int, *, found: bool) -> None:
        """Record whether an answer that should have shown a find did; one find decides."""
        known = self.reuses.item(slot)
        if known == 0 or (found and known < 0):
            slots = self.alike(slot)
            self.reuses[slots] = 1 if found or (self.reuses[slots] > 0).any() else -1

    def _learn(self, slot: int, believed: float, found: float) -> None:
        self.sums[:, slot] *= _KEPT
        self.sums[:2, slot] += believed if found >= _FOUND * believed else found, believed
        slots = self.alike(slot)
        of_each, of_all, prior = self.sums[:, slots]
        expected = (of_each.sum() + 1.0) / (of_all.sum() + 1.0)
        self.shares[slots] = (of_each + prior * expected) / (of_all + prior)

    def restore(self, slot: int, sums: Sequence[float]) -> None:
        """Restore a slot's `sums`."""
        self.reuses[slot] = sums[0] > 0.0
        self.sums[:, slot] = np.add(sums, (0.0, 0.0, 1e-200)) / _KEPT  # as `_learn` fades them
        self._learn(slot, 0.0, 0.0)

    def resize(self, slots: int) -> None:
        """Grow to `slots` slots; a smaller number has no effect."""
        before = len(self.shares)
        more = max(0, slots - before)
        self.sums = np.pad(self.sums, ((0, 0), (0, more)))
        self.sums[2, before:] = 1.0
        self.shares = np.pad(self.shares, (0, more), constant_values=1.0)
        self.reuses = np.pad(self.reuses, (0, more))

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self.sums[:, slot] = 0.0, 0.0, 1.0
        self.shares[slot] = 1.0
        self.reuses[slot] = 0
        self.counted.pop(slot, None)
        self._awaited.pop(slot, None)
        self._reports.discard(slot)
