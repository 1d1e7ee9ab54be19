"""The choice of a prefiller, and of encoders.

A policy that computes costs chooses the prefiller along with the candidate (`Apart.chosen`).
`laar.core.apart` describes the cost of a pair. Encoders are chosen after the candidate: their cost
is unknown, but the same for all candidates.
"""

from __future__ import annotations

import math

import xxhash

from laar.core.apart import Encoder, Prefiller
from laar.core.endpoints import Slots
from laar.core.engines import Began
from laar.core.interfaces import View
from laar.core.request import Api
from laar.prefix.lengths import DIGEST

_MAX_ENCODED = 32
"""Maximum number of images, sounds and videos of a prompt for which encoders are chosen; the
sidecar sends the rest to the same encoders. 32 addresses take 700 bytes in a header."""
_EVEN = 1.25
"""Bound on an encoder's items in flight, as a multiple of the mean: consistent hashing with bounded
loads (Mirrokni, Thorup and Zadimoghaddam 2016)."""


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


def choose_encoders(view: View, slots: Slots, own: int) -> tuple[Encoder, ...]:
    """Return the encoder of each image, sound or video; empty if endpoint `own` encodes them.

    A prompt's items go to different encoders if there are enough. The same item usually goes to the
    same encoder, which caches embeddings, unless it has many more items in flight than the others.
    Hashing each item with each encoder needs no memory, and all pickers agree on the order.
    """
    table, request = view.table, view.request
    if not table.fetches[own] or table.encodes[own] or request.api is not Api.CHAT:
        return ()
    items = [span for span in request.spans if span.startswith(DIGEST)][:_MAX_ENCODED]
    same = slots[table.kv_group[slots] == table.kv_group[own]].tolist()
    of = {slot: table.spec(slot) for slot in same}
    found = list[Encoder]()
    loads, used = {slot: table.in_flight.item(slot) for slot in of}, dict.fromkeys(of, 0)
    for item in items if of else ():
        most = math.ceil(_EVEN * (sum(loads.values()) + 1.0) / len(loads))
        slot = max(
            (slot for slot in of if loads[slot] < most),
            key=lambda slot: (
                -used[slot],
                xxhash.xxh3_64_intdigest(f"{of[slot].key} {item}".encode()),
            ),
        )
        loads[slot] += 1.0
        used[slot] += 1
        found.append(Encoder(slot, of[slot].address))
    return tuple(found)
