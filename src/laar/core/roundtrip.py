"""The round trip to an endpoint, smoothed from probes.

An exponentially weighted mean: the first sample unchanged, then ``0.3 * new + 0.7 * old``, as in
the GORGO paper. With a probe every 30 s that is a time constant of about 100 s.

Three things are added to GORGO's method:

* Spikes are clipped. A nearby replica with a mean of 37 ms was seen to take 545 ms for one probe in
  20; without clipping, one such sample adds 150 ms, and the cost of the best endpoint is wrong for
  minutes. A sample is clipped to three times the mean so far, or 20 ms if that is more. A route
  that has really become slow is still tracked: if 37 ms become 456, the mean is 420 after nine
  probes. Samples below the mean are not clipped: nothing answers faster than the wire.
* A prompt of 80 KB takes more than one round trip, and a new connection begins with another, or two
  with TLS (`laar.core.views`, `laar.core.candidates`).
* Unknown is NaN, never 0, and old values become unknown. GORGO starts at 0, so a replica that never
  answered a probe looks like the nearest one.

Plain functions over numbers and vectors: the endpoint table keeps the columns. A failed probe is
not a sample. `laar.core.candidates` decides how to treat an unknown round trip.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

ALPHA = 0.3
"""Weight of a new sample, as in GORGO."""

CLIP_RATIO = 3.0
CLIP_FLOOR_S = 0.02
"""Within one region the mean is under 1 ms, but the jitter is many times that: 20 ms is normal."""

FIRST_FLIGHT_BYTES = 14_480
"""Bytes that TCP sends in the first round trip: ten segments (RFC 6928). Each later round trip of a
new connection, or of one that was idle, takes twice as many as the one before."""

KEPT_OPEN_S = 4.0
"""Seconds for which Envoy keeps an idle connection to an endpoint."""

STALE_AFTER_S = 300.0
"""Ten missed probes at GORGO's interval of 30 s; readiness checks have reacted too by then."""


def smooth_rtt(previous_s: float, sample_s: float) -> float:
    """Return the mean after one more probe.

    Args:
        previous_s: the previous mean; NaN if there is none or it is not fresh (`fresh_rtt`).
        sample_s: the probe's time. A value that cannot be a time (NaN, infinite, not positive) is
            ignored.
    """
    if not 0.0 < sample_s < math.inf:
        return previous_s
    if math.isnan(previous_s):
        return sample_s
    clipped_s = min(sample_s, max(CLIP_RATIO * previous_s, CLIP_FLOOR_S))
    return previous_s + ALPHA * (clipped_s - previous_s)


def fresh_rtt(
    rtt_s: npt.NDArray[np.float64], measured_s: npt.NDArray[np.float64], now: float
) -> npt.NDArray[np.float64]:
    """Return the means that are still fresh, with NaN in place of the others.

    Args:
        rtt_s: means, shape ``(n,)``.
        measured_s: when each was last updated, on the clock of ``now``; NaN is never fresh.
        now: seconds, monotonic.
    """
    return np.where(now - measured_s < STALE_AFTER_S, rtt_s, math.nan)
