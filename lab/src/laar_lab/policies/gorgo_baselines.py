"""Two baselines as GORGO's evaluation has them."""

from __future__ import annotations

import numpy as np
import xxhash

from laar.core.endpoints import Floats
from laar.core.interfaces import View
from laar.policies.ranking import least, ranks
from laar.policies.simple import PREFIX_CHARS


class LeastLoad:
    """`running + waiting + KV tokens in use + queued tokens`, least first.

    Requests and tokens in one sum, as in its source: tokens decide. Values that were never scraped
    are 0 there, and here.
    """

    def score(self, view: View) -> Floats:
        """Ties go to chance."""
        table, slots = view.table, view.slots
        scraped = np.nan_to_num(
            table.running[slots]
            + table.waiting[slots]
            + table.kv_usage[slots] * table.capacity_tokens[slots]
        )
        return ranks(least(scraped + view.queued_tokens, view.rng))


class SimpleSessionAffinity:
    """A hash of the prompt's first 256 tokens modulo the number of candidates.

    It knows no session: conversations that begin with one system prompt go to one endpoint.
    """

    def score(self, view: View) -> Floats:
        """Return the endpoint that the beginning hashes to, then the ones after it."""
        start = "".join(view.request.spans)[:PREFIX_CHARS]
        count = len(view.slots)
        first = xxhash.xxh3_64_intdigest(start.encode("utf-8", "surrogatepass")) % count
        return ranks([(first + i) % count for i in range(count)])
