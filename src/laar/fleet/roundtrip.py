"""The round trip to an endpoint, from a window of samples, and what is a tie.

Nothing answers faster than the wire, and within a region what makes an answer late is an engine's
event loop, or the picker's own. The median of the last samples less the least is the jitter. If
that exceeds the least (twice the least of .1 s, thrice that of .2 s), the least is the distance.
Otherwise the wire varies, by a share of its length or for a while, and requests take what it takes
now: the distance is GORGO's smoothed mean, and such means differ by half the jitter. An endpoint
that is farther than another by less than the jitter is as near: samples have to agree.

A prompt of 80 KB takes more than one round trip, and a new connection begins with another, or two
with TLS (`laar.core.views`, `laar.core.candidates`). Unknown is NaN, never 0, and old values become
unknown: `laar.core.candidates` decides how to treat it. GORGO starts at 0, so a replica that never
answered a probe looks like the nearest one. A failed probe is not a sample.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WINDOW = 12
"""Samples: a minute of probes; a loop busy nine tenths of the time seldom makes all late."""

_NEW, _MOST = 0.3, 3.0  # a sample's weight, as in GORGO, and how many means it counts at most

TIE_S = 0.005
"""Smaller differences are no distance: within a region, the machines cause them, not the wire."""

FIRST_FLIGHT_BYTES = 14_480
"""Bytes that TCP sends in the first round trip: ten segments (RFC 6928). Each later round trip of a
new connection, or of one that was idle, takes twice as many as the one before."""

KEPT_OPEN_S = 4.0
"""Seconds for which Envoy keeps an idle connection to an endpoint."""

STALE_AFTER_S = 300.0
"""Ten missed probes at GORGO's interval of 30 s; readiness checks have reacted too by then."""


def distance_of(samples_s: deque[float]) -> tuple[float, float]:
    """Return the distance by a window of samples, and what may be no distance; NaN if empty."""
    ordered = sorted(samples_s) or [math.nan]
    least_s, jitter_s = ordered[0], ordered[len(ordered) // 2] - ordered[0]
    mean_s, is_late = least_s + jitter_s, jitter_s > least_s * (1.0 + least_s / 0.1)
    for sample_s in samples_s:
        mean_s += _NEW * (min(sample_s, _MOST * mean_s) - mean_s)
    return (least_s, jitter_s) if is_late else (mean_s, 0.5 * jitter_s)


def distances(rtt_s: Floats, jitter_s: Floats, measured_s: Floats, now: float) -> Floats:
    """Return round trips, each the least of all that are shorter by no more than the jitter.

    That is its own or the usual one, as much of the jitter is the picker's, which siblings share.

    Args:
        rtt_s: round trips to siblings; NaN if unknown, and so in the result.
        jitter_s: jitter of each.
        measured_s: when each was measured, on the clock of `now`; NaN or long ago is unknown.
        now: seconds, monotonic.
    """
    rtt_s = np.where(now - measured_s < STALE_AFTER_S, rtt_s, math.nan)
    ordered, jitters_s = np.sort(rtt_s), np.sort(np.fmax(jitter_s, TIE_S))  # NaN is last
    usual_s = jitters_s[(len(jitters_s) - 1) // 2]
    nearest: Floats = ordered[np.searchsorted(ordered, rtt_s - np.fmax(jitter_s, usual_s))]
    return nearest
