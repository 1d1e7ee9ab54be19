"""Two policies of SGLang's gateway: the cache-aware switch, and the product rule `lmetric`.

SGLang counts characters; tokens by the same estimate order endpoints in the same way.
"""

from __future__ import annotations

import numpy as np

from laar.core.endpoints import Floats
from laar.core.interfaces import View
from laar.policies.ranking import least, ranks

__all__ = ["CacheAware", "Lmetric"]


class CacheAware:
    """The best match where it is long enough, unless load is out of balance.

    Out of balance is `max - min > abs_threshold and max > rel_threshold * min` of requests in
    flight. Then, and when the best match is not above `cache_threshold` of the prompt, the least
    loaded is taken. Defaults are those of its command line.

    Args:
        cache_threshold: share of the prompt.
        abs_threshold: requests.
        rel_threshold: ratio.
    """

    def __init__(
        self,
        *,
        cache_threshold: float = 0.3,
        abs_threshold: float = 64.0,
        rel_threshold: float = 1.5,
    ) -> None:
        self._cache_threshold = cache_threshold
        self._abs_threshold = abs_threshold
        self._rel_threshold = rel_threshold

    def score(self, view: View) -> Floats:
        """Ranks, by the rule above."""
        most, fewest = view.in_flight.max(), view.in_flight.min()
        by_load = least(view.in_flight, view.rng)
        if most - fewest > self._abs_threshold and most > self._rel_threshold * fewest:
            return ranks(by_load)
        matched = view.cached_tokens / np.maximum(view.tokens, 1.0)
        if matched.max() <= self._cache_threshold:
            return ranks(by_load)
        return ranks(sorted(by_load, key=lambda i: -matched[i]))


class Lmetric:
    """`uncached tokens * (requests in flight + 1)`, least first. Nothing to tune."""

    def score(self, view: View) -> Floats:
        """Ties go to chance."""
        uncached = np.maximum(view.tokens - view.cached_tokens, 0.0)
        return ranks(least(uncached * (view.in_flight + 1.0), view.rng))
