"""Which endpoints have room: caps on prefill seconds in flight, requests and KV cache usage.

There are two sources with different strengths. The picker's own counters change with each decision
and never go stale, but count no prefills of other pickers, and requests only if these report them.
The endpoints' readings count all requests, but lag, and stop at an endpoint too busy to be scraped.

So a reading can close an endpoint only while it is fresh. Treating stale readings as full, as some
pickers do, locks out a fleet for good: nothing is sent, so no reading changes. Here a stale or
missing reading leaves the decision to the picker's counters, which fall as its requests end.

Prefill seconds are those of `laar.speeds.traffic`: a prompt counts until its first token, or if
that is not seen, until it should be prefilled, the prompts of an endpoint one after another.

A long prefill in flight must not fill an endpoint by itself, or it would delay every short prompt
for minutes, the convoy effect that this package prevents: for short prompts, long prefills in
flight take up at most half of the cap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from laar.fleet.endpoints import EndpointTable, Floats, Mask, Slots
from laar.flow.settings import FlowSettings
from laar.speeds.engines import Engines

MAX_KV_USAGE = 0.95
"""Share of the KV cache in use above which an endpoint is full, since it is about to preempt. Lower
than in `laar.core.filters`: the queue holds requests before the filter drops an endpoint."""

STALE_AFTER_S = 3.0
"""Seconds after which a reading no longer marks an endpoint as full: three missed scrapes. It can
be this short because laar's own counters still apply."""

LONG_SHARE = 0.5
"""Maximum share of an endpoint's prefill cap that long requests in flight take from short ones."""


class Long(NamedTuple):
    """A long prompt in flight.

    Args:
        slot: its endpoint.
        work_s: c(m)'s estimate for it, in seconds.
        until: when it should be prefilled; infinite if its first token will be seen.
    """

    slot: int
    work_s: float
    until: float


def longs_at(
    longs: Iterable[Long], engines: Engines, slots: Slots, now: float
) -> tuple[Floats, Floats]:
    """Return how many long prompts the endpoints are prefilling, and the seconds left of these."""
    left = [long for long in longs if long.until > now]
    if not left:
        return np.zeros(len(slots)), np.zeros(len(slots))
    at, traffic = np.array([long.slot for long in left]), engines.traffic
    until = np.array([long.until for long in left])
    # Answers that end early make an endpoint free earlier than it seemed.
    until = np.where(np.isinf(until), until, np.minimum(until, traffic.free_at[at]))
    work_s = np.array([long.work_s for long in left])
    left_s = np.clip(until - now, 0.0, engines.reads(at) * work_s)
    counts, seconds = np.zeros(len(traffic.at)), np.zeros(len(traffic.at))
    np.add.at(counts, at, left_s > 0.0)
    np.add.at(seconds, at, left_s)
    return counts[slots], seconds[slots]


def has_room(
    table: EndpointTable,
    engines: Engines,
    settings: FlowSettings,
    slots: Slots,
    now: float,
    is_long: Mask,
    longs: tuple[Floats, Floats],
    *,
    shorts_wait: bool,
) -> Mask:
    """Return the endpoints that may take one more request now.

    While shorts wait, no endpoint takes a second long prefill (algorithm 2's safety rule).

    Args:
        table: the endpoints and their readings.
        engines: the prefill work at the endpoints, and how long it takes.
        settings: the caps.
        slots: the candidates.
        now: the current time.
        is_long: for which of them the request is long.
        longs: the result of `longs_at`.
        shorts_wait: whether short requests wait.
    """
    traffic, read = engines.traffic, engines.reads(slots)
    # The clock includes other pickers' prompts, but at most this picker's own are counted.
    unseen_s = np.minimum(traffic.free_at[slots] - now, read * traffic.unseen_s[slots])
    prefill_s = read * traffic.own_ahead_s[slots] + np.maximum(unseen_s, 0.0)
    counts, long_s = longs
    spared_s = np.maximum(long_s - LONG_SHARE * settings.max_prefill_s, 0.0)
    prefill_s -= np.where(is_long, 0.0, spared_s)
    own = np.maximum(
        prefill_s / settings.max_prefill_s, table.in_flight[slots] / settings.max_requests
    )
    requests = table.running[slots] + table.waiting[slots]
    reported = np.fmax(requests / settings.max_requests, table.kv_usage[slots] / MAX_KV_USAGE)
    # NaN compares false, and fmax ignores it: an unknown reading fills no endpoint.
    fresh = now - table.read_at[slots] <= STALE_AFTER_S
    room: Mask = np.fmax(own, np.where(fresh, reported, 0.0)) < 1.0
    return room & ~(is_long & shorts_wait & (counts >= 1.0))
