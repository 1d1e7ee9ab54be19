"""Which endpoints have room: caps on prefill seconds in flight, requests and KV cache usage.

There are two sources with different strengths. The picker's own counters change with each decision
and never go stale, but count no prefills of other pickers, and requests only if these report them.
The endpoints' readings count all requests, but lag, and stop at an endpoint too busy to be scraped.

So a reading can close an endpoint only while it is fresh. Treating stale readings as full, as some
pickers do, locks out a fleet for good: nothing is sent, so no reading changes. Here a stale or
missing reading leaves the decision to the picker's counters, which fall as its requests end.

A long prefill in flight must not fill an endpoint by itself, or it would delay every short prompt
for minutes, the convoy effect that this package prevents: for short prompts, long prefills in
flight take up at most half of the cap.
"""

from __future__ import annotations

import numpy as np

from laar.core.endpoints import Mask, Slots
from laar.flow.prefills import Prefills
from laar.flow.settings import FlowSettings

MAX_KV_USAGE = 0.95
"""Share of the KV cache in use above which an endpoint is full, since it is about to preempt. Lower
than in `laar.core.filters`: the queue holds requests before the filter drops an endpoint."""

STALE_AFTER_S = 3.0
"""Seconds after which a reading no longer marks an endpoint as full: three missed scrapes. It can
be this short because laar's own counters still apply."""

LONG_SHARE = 0.5
"""Maximum share of an endpoint's prefill cap that long requests in flight take from short ones."""


def has_room(
    prefills: Prefills,
    settings: FlowSettings,
    slots: Slots,
    now: float,
    is_long: Mask,
    *,
    shorts_wait: bool,
) -> Mask:
    """Return the endpoints that may take one more request now; `is_long` where it is long.

    While shorts wait, no endpoint takes a second long prefill (algorithm 2's safety rule).
    """
    table = prefills.table
    spared_s = prefills.long_seconds[slots] - LONG_SHARE * settings.max_prefill_s
    prefill_s = prefills.seconds[slots] - np.where(is_long, 0.0, np.maximum(spared_s, 0.0))
    own = np.maximum(
        prefill_s / settings.max_prefill_s, table.in_flight[slots] / settings.max_requests
    )
    requests = table.running[slots] + table.waiting[slots]
    reported = np.fmax(requests / settings.max_requests, table.kv_usage[slots] / MAX_KV_USAGE)
    # NaN compares false, and fmax ignores it: an unknown reading fills no endpoint.
    fresh = now - table.read_at[slots] <= STALE_AFTER_S
    room: Mask = np.fmax(own, np.where(fresh, reported, 0.0)) < 1.0
    return room & ~(is_long & shorts_wait & (prefills.longs[slots] >= 1.0))
