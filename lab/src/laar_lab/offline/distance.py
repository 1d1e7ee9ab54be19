"""The distance between two contexts (ContextPilot, equation 1).

A context is an ordered list of document ids, best first. The more documents two contexts have in
common, the smaller the distance; similar positions reduce it further, with a small weight:

    d(A, B) = 1 - |S| / max(|A|, |B|) + alpha * mean over S of |posA - posB|       S = A and B

It is 1 if nothing is shared. It is symmetric, in [0, 1 + alpha * (k - 1)), and not a metric.
Overlap dominates while alpha * k < 1 / k. The default satisfies this up to about 30 documents; for
more, use alpha <= 1 / (2 k^2). Values are rounded to 1e-9, so that ties are exact in any order of
summation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ALPHA = 0.001
"""Weight of the positions, as in all runs of the paper."""


def distance(a: Sequence[int], b: Sequence[int], alpha: float = ALPHA) -> float:
    """Return the distance in O(|a| + |b|); of a repeated id, the last position is used."""
    at = {doc: i for i, doc in enumerate(a)}
    gaps = [abs(at[doc] - j) for doc, j in {doc: j for j, doc in enumerate(b)}.items() if doc in at]
    if not gaps:
        return 1.0
    return round(1 - len(gaps) / max(len(a), len(b)) + alpha * sum(gaps) / len(gaps), 9)


def distances(contexts: Sequence[Sequence[int]], alpha: float = ALPHA) -> npt.NDArray[np.float32]:
    """Return the distances of all pairs as an (N, N) matrix with zeros on the diagonal.

    For each document, only the contexts that contain it are compared, so pairs without common
    documents cost nothing. Takes time proportional to the sum of contexts^2 over all documents, and
    temporarily 6 bytes per pair.
    """
    n = len(contexts)
    holders: dict[int, dict[int, int]] = {}
    for row, context in enumerate(contexts):
        for position, doc in enumerate(context):
            holders.setdefault(doc, {})[row] = position
    shared = np.zeros((n, n), np.int16)
    gaps = np.zeros((n, n), np.int32)
    for places in holders.values():
        if len(places) > 1:
            rows = np.fromiter(places, np.intp, len(places))
            at = np.fromiter(places.values(), np.int32, len(places))
            pairs = np.ix_(rows, rows)
            shared[pairs] += 1
            gaps[pairs] += np.abs(at[:, None] - at)
    sizes = np.array([len(context) for context in contexts], np.float64)
    out = np.ones((n, n), np.float32)
    for row in range(n):  # rounds in float64, without an N x N matrix in float64
        near = np.flatnonzero(shared[row])
        common = shared[row, near].astype(np.float64)
        away = 1 - common / np.maximum(sizes[row], sizes[near]) + alpha * gaps[row, near] / common
        out[row, near] = np.round(away, 9)
    np.fill_diagonal(out, 0.0)
    return out
