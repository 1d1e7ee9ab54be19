"""Two baselines from GORGO's evaluation."""

from __future__ import annotations

import numpy as np
import xxhash

from laar.core.interfaces import View
from laar.fleet.endpoints import Floats
from laar.policies.pickers import least, ranks
from laar.policies.simple import PREFIX_CHARS


class LeastLoad:
    """Prefers the least `running + waiting + KV tokens in use + queued tokens`.

    Requests and tokens are simply added, as in GORGO's code, so tokens dominate. As there, values
    that were never scraped are 0.
    """

    def score(self, view: View) -> Floats:
        """Rank by the sum, breaking ties at random."""
        table, slots = view.table, view.slots
        scraped = np.nan_to_num(
            table.running[slots]
            + table.waiting[slots]
            + table.kv_usage[slots] * table.capacity_tokens[slots]
        )
        return ranks(least(scraped + view.queued_tokens, view.rng))


class SimpleSessionAffinity:
    """Hashes the prompt's first 256 tokens, modulo the number of candidates.

    Sessions are ignored, so all conversations with the same system prompt go to one endpoint.
    """

    def score(self, view: View) -> Floats:
        """Rank first the endpoint that the hash selects, then those after it in the list."""
        start = "".join(view.request.spans)[:PREFIX_CHARS]
        count = len(view.slots)
        first = xxhash.xxh3_64_intdigest(start.encode("utf-8", "surrogatepass")) % count
        return ranks([(first + i) % count for i in range(count)])
