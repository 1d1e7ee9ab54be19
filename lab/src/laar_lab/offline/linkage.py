"""Average-linkage clustering by the nearest-neighbor chain, O(N^2).

The paper merges the closest pair repeatedly and does not name the linkage; its published figures
fit average linkage. SciPy's `linkage` gives the same distances, but breaks ties in a different
order, which would change plans and stored results.

The chain finds merges out of order. Distances never decrease from merge to merge with average
linkage, so a stable sort by distance restores the order. Ties are deterministic: the chain starts
at the lowest remaining cluster and prefers the cluster it came from, then the lowest index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Merge = tuple[int, int, float]
"""(cluster, cluster, distance), the lower id first; merge i makes cluster N + i."""


def average_linkage(matrix: npt.NDArray[np.float32]) -> list[Merge]:
    """Return the merges of N points, nearest first.

    Args:
        matrix: (N, N) symmetric distances; overwritten.
    """
    n = len(matrix)
    np.fill_diagonal(matrix, np.inf)
    size = np.ones(n, np.int64)
    found: list[Merge] = []
    chain: list[int] = []
    first = 0
    for _ in range(n - 1):
        if not chain:
            while not size[first]:
                first += 1
            chain.append(first)
        while True:
            here = chain[-1]
            near = int(np.argmin(matrix[here]))
            if len(chain) > 1 and matrix[here, chain[-2]] <= matrix[here, near]:
                near = chain[-2]
                break
            chain.append(near)
        del chain[-2:]
        low, high = min(here, near), max(here, near)
        found.append((low, high, float(matrix[here, near])))
        row = (size[low] * matrix[low] + size[high] * matrix[high]) / (size[low] + size[high])
        matrix[high] = matrix[:, high] = row  # stays inf for merged clusters
        matrix[low] = matrix[:, low] = np.inf
        matrix[high, high] = np.inf
        size[high] += size[low]
        size[low] = 0
    return _number(found, n)


def _number(found: list[Merge], n: int) -> list[Merge]:
    """Sort the merges by distance, and replace each point with its cluster at that time."""
    found.sort(key=lambda merge: merge[2])
    inside = list(range(2 * n - 1))

    def cluster(point: int) -> int:
        while inside[point] != point:
            inside[point] = inside[inside[point]]
            point = inside[point]
        return point

    merges: list[Merge] = []
    for made, (a, b, away) in enumerate(found, start=n):
        low, high = sorted((cluster(a), cluster(b)))
        inside[low] = inside[high] = made
        merges.append((low, high, away))
    return merges
