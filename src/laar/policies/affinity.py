"""Session affinity: the same client, or the same beginning of a prompt, to the same endpoint."""

from __future__ import annotations

import numpy as np
import xxhash

from laar.core.endpoints import Floats
from laar.core.interfaces import View

PREFIX_CHARS = 1024
"""About 256 tokens: the text that GORGO's affinity baseline hashes where no session id is given."""


class SessionAffinity:
    """Rendezvous hashing of the session over the candidates.

    The key is ``x-laar-session``; without one, the first 256 tokens or so of the prompt, as in
    GORGO's baseline. A retry of the same request comes back to the same endpoint. Rendezvous
    rather than modulo, so that an endpoint that joins or leaves moves only its own share.
    """

    def score(self, view: View) -> Floats:
        """Return one for the endpoint that the session hashes to, less for the rest in order."""
        request = view.request
        key = request.session or "".join(request.spans)[:PREFIX_CHARS]
        seed = xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"))
        draws = [
            xxhash.xxh3_64_intdigest(view.table.spec(int(slot)).key.encode(), seed)
            for slot in view.slots
        ]
        scores: Floats = np.array(draws, np.float64) / 2.0**64
        # Two draws inside a near-tie must not let load decide: spread them by rank.
        ranked: Floats = np.empty(len(scores))
        ranked[np.argsort(scores)] = np.linspace(0.0, 1.0, len(scores) + 1)[1:]
        return ranked**8 if len(scores) > 8 else ranked
