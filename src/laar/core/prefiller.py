"""The choice of a prefiller.

A policy that computes costs chooses the prefiller along with the candidate (`Apart.chosen`).
`laar.core.apart` describes the cost of a pair.
"""

from __future__ import annotations

from laar.core.apart import Prefiller
from laar.core.engines import Began
from laar.core.interfaces import View


def choose_prefiller(view: View, at: int) -> Prefiller | None:
    """Return the endpoint that prefills for the candidate at `at`; None if it does so itself."""
    apart = view.apart
    if apart is None or apart.chosen is None:
        return None  # no prefillers, or the policy computes no costs
    place = int(apart.chosen[at])
    if place < 0:
        return None
    slot, tokens = int(apart.of.slots[place]), float(apart.tokens[place])
    spec, seconds_per_token = view.table.spec(slot), float(apart.seconds_per_token[place])
    uncached = tokens - float(apart.cached_tokens[place])
    return Prefiller(
        slot=slot,
        address=spec.address,
        uncached_tokens=uncached,
        began=Began(
            slot=slot,
            plain_s=uncached * seconds_per_token,
            prompt_s=tokens * seconds_per_token,
            context_tokens=tokens - 0.5 * uncached,
            others=float(apart.decoding[place]),
            rtt_s=0.0,
            shown=view.request.first_token_seen,
            visits=True,
        ),
        transfer_s=float(view.tokens[at] - view.cached_tokens[at]) * apart.transfer_s_per_token,
    )
