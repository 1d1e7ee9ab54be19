"""Compare how long two pieces of work take in one run, on a machine of any speed."""

from __future__ import annotations

import time
from collections.abc import Callable


def times_as_long(work: Callable[[], object], other: Callable[[], object], tries: int = 5) -> float:
    """Return how many times as much CPU time `work` takes as `other`: the least of several turns.

    They run by turns, so that what slows the machine down slows both.
    """
    least = [float("inf"), float("inf")]
    for _ in range(tries):
        for at, each in enumerate((work, other)):
            began = time.thread_time()
            each()
            least[at] = min(least[at], time.thread_time() - began)
    return least[0] / max(least[1], 1e-4)
