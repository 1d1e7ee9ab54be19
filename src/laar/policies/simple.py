"""Policies without a cost: by load, by session, round robin, and random."""

from __future__ import annotations

import numpy as np
import xxhash

from laar.core.interfaces import View
from laar.fleet.endpoints import Floats
from laar.policies.pickers import ranks

PREFIX_CHARS = 1024
"""About 256 tokens, which GORGO's affinity baseline hashes if there is no session id."""


class LeastLoaded:
    """The endpoint with the fewest requests in flight, as counted by the picker."""

    def score(self, view: View) -> Floats:
        """Score lower with every request in flight."""
        return 1.0 / (1.0 + view.in_flight)


class LoadAware:
    """llm-d's load-aware scorer: 0.5 for an idle queue, falling to 0 at the threshold.

    `0.5 * (1 - min(waiting, threshold) / threshold)`, from the engine's own queue as last scraped.
    An endpoint whose queue was never read is treated as full, not as idle.

    Args:
        threshold: number of waiting requests at which the score reaches 0.
    """

    def __init__(self, *, threshold: float = 128.0) -> None:
        self._threshold = threshold

    def score(self, view: View) -> Floats:
        """Return half of the free share of the threshold."""
        known = np.nan_to_num(view.table.waiting[view.slots], nan=self._threshold)
        return 0.5 * (1.0 - np.minimum(known, self._threshold) / self._threshold)


class SessionAffinity:
    """Rendezvous hashing of the session over the candidates.

    The key is ``x-laar-session``, or about the first 256 tokens of the prompt if there is none, as
    in GORGO's baseline. A retry of the same request goes to the same endpoint. Rendezvous hashing
    is used rather than modulo, so that adding or removing an endpoint moves only its own share.
    """

    def score(self, view: View) -> Floats:
        """Return 1 for the endpoint that the session hashes to, and ever less for the others."""
        request = view.request
        key = request.session or "".join(request.spans)[:PREFIX_CHARS]
        seed = xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"))
        draws = [
            xxhash.xxh3_64_intdigest(view.table.spec(int(slot)).key.encode(), seed)
            for slot in view.slots
        ]
        # Load must not decide between hashes that are nearly equal, so score by rank.
        return ranks(sorted(range(len(draws)), key=draws.__getitem__, reverse=True))


class Random:
    """A random candidate, all equally likely."""

    def score(self, view: View) -> Floats:
        """Return 1 for a random candidate, 0 for the others."""
        scores = np.zeros(len(view.slots))
        scores[view.rng.randrange(len(scores))] = 1.0
        return scores


class RoundRobin:
    """The candidates in turn, whichever of them each request has."""

    def score(self, view: View) -> Floats:
        """Return 1 for the candidate that was chosen the longest ago, 0 for the others."""
        scores = np.zeros(len(view.slots))
        scores[view.table.chosen[view.slots].argmin()] = 1.0
        return scores
