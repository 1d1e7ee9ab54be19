"""Estimate the probability that a request contains a document, given its other documents.

Documents after the aligned part are sorted by this estimate, so that branches begin with documents
that later requests with that prefix are likely to contain. By popularity alone, a passage popular
on another topic would come first; by co-occurrence, it comes last. On the workload
`laar_lab.workloads.rag.topic` (4 caches of 750 documents) the hit rate rises from 0.32 to 0.35.

    P(x | y in request) = (together(x, y) + PRIOR * share(x)) / (count(y) + PRIOR),  averaged over y

Counts are kept in fixed-size tables (count-min, conservative update), so memory does not depend on
the number of documents; a collision only makes an order worse. Old counts decay because the weight
of new ones grows.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

PRIOR = 20.0
"""Weight of plain popularity, in requests; 10 to 30 performed equally well on all workloads."""

PARTNERS = 64
"""Maximum number of documents per request whose pairs are counted, since the work is quadratic."""

HALF_LIFE_S = 600.0
"""Half-life of a sighting, in seconds."""

KNOWN = 0.05
"""Decayed number of sightings below which a document is considered new: 4 half-lives after one."""

_BITS = 16
_RESCALE = 60.0  # half-lives; 2^60 times k documents is well within float32's range
_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64).reshape(2, 1, 1)
_ROWS = np.array([0, 1 << _BITS], np.intp).reshape(2, 1, 1)


class Affinity:
    """Decayed counts of documents and pairs for one scope; 512 KiB."""

    def __init__(self) -> None:
        self._counts = np.zeros(2 << _BITS, np.float32)  # two rows
        self._requests = 0.0
        self._origin: float | None = None

    def likely(self, docs: Sequence[int], now: float) -> tuple[dict[int, float], frozenset[int]]:
        """Return the scores of documents (64-bit hashes), and which documents were seen before."""
        ordered = sorted(docs)
        weight = self._weight(now)
        partners = min(len(ordered), PARTNERS)
        least = np.minimum(*self._counts.take(_slots(ordered)))
        counts, together = least[:, partners], least[:, :partners]
        least.reshape(-1)[: partners * (partners + 1) : partners + 2] = 0.0  # self-pairs
        inverse = 1.0 / (counts[:partners] + np.float32(PRIOR * weight))
        total = np.full(len(ordered), inverse.sum(), np.float32)
        total[:partners] -= inverse
        share = counts * np.float32(PRIOR * weight / (self._requests + weight))
        # Not a matrix product, whose rounding, and therefore ties, would differ between processors.
        score = ((together * inverse).sum(1) + share * total) / max(1, partners - 1)
        fewest, seen = KNOWN * weight, zip(ordered, counts.tolist(), strict=True)
        known = frozenset([doc for doc, count in seen if count > fewest])
        return dict(zip(ordered, score.tolist(), strict=True)), known

    def observe(self, docs: Sequence[int], now: float) -> None:
        """Count a request that was sent."""
        weight = self._weight(now)
        self._requests += weight
        slots = _slots(docs).reshape(2, -1).take(_counted(len(docs)), axis=1)
        counts = self._counts.take(slots)
        # Raising both counters to the estimate plus one adds less noise than incrementing each.
        raised = np.minimum(counts[0], counts[1]) + np.float32(weight)
        self._counts[slots] = np.maximum(counts, raised)

    def _weight(self, now: float) -> float:
        """Return the current weight of a sighting; rescale tables before they overflow."""
        if self._origin is None:
            self._origin = now
        age = max(0.0, now - self._origin) / HALF_LIFE_S
        if age > _RESCALE:
            factor = 2.0**-age
            self._counts *= factor
            self._requests *= factor
            self._origin = now
            age = 0.0
        return float(2.0**age)


@lru_cache(64)
def _counted(count: int) -> npt.NDArray[np.intp]:
    """Return the indices, in the flattened table of `_slots`, of all documents and pairs."""
    partners = min(count, PARTNERS)
    first, second = np.triu_indices(partners, 1)
    single = np.arange(count) * (partners + 1) + partners
    return np.concatenate((first * (partners + 1) + second, single))


def _slots(docs: Sequence[int]) -> npt.NDArray[np.intp]:
    """Return the indexes of the counters in both rows: each document with each partner, then alone.

    Args:
        docs: 64-bit hashes.
    """
    hashes = np.frombuffer(array("Q", docs), np.uint64)
    partners = np.frombuffer(array("Q", [*docs[:PARTNERS], 0]), np.uint64)
    slots = (hashes[:, None] ^ partners) * _ODD  # multiplicative hashing
    slots >>= np.uint64(64 - _BITS)
    return slots.view(np.intp) + _ROWS
