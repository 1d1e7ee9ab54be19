"""The choice of a prefiller, and of encoders.

A policy that computes costs chooses the prefiller along with the candidate (`Apart.chosen`); an
excluded one gets its trial here. `laar.core.apart` describes the cost of a pair. Encoders are
chosen after the candidate: their cost is unknown, but the same for all candidates.
"""

from __future__ import annotations

import math

import xxhash

from laar.core.apart import Encoder, Prefiller
from laar.core.endpoints import Slots
from laar.core.engines import Began
from laar.core.interfaces import View
from laar.core.request import Api
from laar.health import Health, Standing
from laar.prefix.lengths import DIGEST

_MAX_ENCODED = 32
"""Maximum number of images, sounds and videos of a prompt for which encoders are chosen; the
sidecar sends the rest to the same encoders. 32 addresses take 700 bytes in a header."""
_EVEN = 1.25
"""Bound on an encoder's items in flight, as a multiple of the mean: consistent hashing with bounded
loads (Mirrokni, Thorup and Zadimoghaddam 2016)."""


def choose_prefiller(view: View, at: int, health: Health) -> Prefiller | None:
    """Return the endpoint that prefills for the candidate at `at`; None if it does so itself."""
    apart, table = view.apart, view.table
    if apart is None or apart.chosen is None:
        return None  # no prefillers, or the policy computes no costs
    place, columns = int(apart.chosen[at]), (apart.tokens, apart.seconds_per_token)
    slot, own, kv_group, trials = None, view.slots[at], table.kv_group, apart.of.trials
    if trials.trials and apart.of.kv_group_of[at] >= 0:
        due = health.due(trials, view.now)
        slot = None if due is None or due == own or kv_group[due] != kv_group[own] else due
    trial = slot is not None
    if slot is not None:  # an excluded endpoint: nothing is known about its cache or load
        place, columns = at, (view.tokens, view.seconds_per_token)
    elif place >= 0:
        slot = int(apart.of.slots[place])
    else:
        return None
    tokens, seconds_per_token = (float(column[place]) for column in columns)
    uncached = tokens if trial else tokens - float(apart.cached_tokens[place])
    fetched = tokens if trial else float(view.tokens[at] - view.cached_tokens[at])
    return Prefiller(
        slot=slot,
        address=table.spec(slot).address,
        key=table.spec(slot).key,
        uncached_tokens=uncached,
        began=Began(
            slot=slot,
            plain_s=uncached * seconds_per_token,
            prompt_s=tokens * seconds_per_token,
            context_tokens=tokens - 0.5 * uncached,
            others=0.0 if trial else float(apart.decoding[place]),
            rtt_s=0.0,
            shown=view.request.first_token_seen,
            visits=True,
        ),
        transfer_s=fetched * apart.transfer_s_per_token,
        trial=trial,
    )


def choose_encoders(
    view: View, slots: Slots, trials: Standing, own: int, health: Health
) -> tuple[Encoder, ...]:
    """Return the encoder of each image, sound or video; empty if endpoint `own` encodes them.

    A prompt's items go to different encoders if there are enough. The same item usually goes to the
    same encoder, which caches embeddings, unless it has many more items in flight than the others.
    Hashing each item with each encoder needs no memory, and all pickers agree on the order.
    """
    table, request = view.table, view.request
    if not table.fetches[own] or table.encodes[own] or request.api is not Api.CHAT:
        return ()
    items = [span for span in request.spans if span.startswith(DIGEST)][:_MAX_ENCODED]
    due = health.due(trials, view.now) if items else None
    of = {
        slot: table.spec(slot)
        for slot in [*slots.tolist(), *([] if due is None else [due])]
        if table.kv_group[slot] == table.kv_group[own]
    }
    found = list[Encoder]()
    if due is not None and due in of:
        found.append(Encoder(due, of.pop(due).address, trial=True))
    loads, used = {slot: table.in_flight.item(slot) for slot in of}, dict.fromkeys(of, 0)
    for item in items[len(found) :] if of else ():
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
