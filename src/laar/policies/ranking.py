"""Scores that preserve a policy's own order, including its ties, through the max-score picker.

The max-score picker breaks near-ties by load. Policies from other projects define how they break
ties, mostly at random.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from laar.core.endpoints import Floats


def ranks(order: Sequence[int]) -> Floats:
    """Return scores of candidates given best first: 1, 1/2, 1/3 ..., so that none are near-ties."""
    scores: Floats = np.empty(len(order))
    scores[np.asarray(order, np.intp)] = 1.0 / np.arange(1, len(order) + 1)
    return scores


def least(values: Floats, rng: random.Random) -> list[int]:
    """Return positions by ascending value, with equals in random order."""
    draws = [rng.random() for _ in values]
    return sorted(range(len(draws)), key=lambda i: (values[i], draws[i]))
