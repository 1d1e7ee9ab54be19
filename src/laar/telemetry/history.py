"""The last hour, in memory, for the page's curves; Prometheus keeps all labels for longer.

A ring of one-minute bins. A decision costs one addition, and a request's end a few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from laar.core.decision import Decision
from laar.explain.decision_record import DecisionRecord
from laar.telemetry.metrics import Histogram

BIN_S = 60.0
BINS = 61
"""Number of bins: an hour, to look back on after an alarm, and the current minute."""
_BOUNDS_S = [0.001 * 1.08**step for step in range(180)]
"""Bounds of a bin's times: a median is at most 8 % too high, and the ring takes 200 KB."""


def _times() -> Histogram:
    return Histogram(_BOUNDS_S)


@dataclass(slots=True)
class _Bin:
    number: int = -1
    decisions: int = 0
    ended: int = 0
    failed: int = 0
    found_tokens: float = 0.0
    prompt_tokens: float = 0.0
    ttft_s: Histogram = field(default_factory=_times)
    ttca_s: Histogram = field(default_factory=_times)


class History:
    """Collects decisions, ends of requests and judged answers into curves."""

    def __init__(self) -> None:
        self._ring = [_Bin() for _ in range(BINS)]

    def decided(self, decision: Decision) -> None:
        """Count a decision."""
        self._at(decision.now).decisions += 1

    def settled(self, record: DecisionRecord) -> None:
        """Count the end of a request."""
        end = record.end
        if end is None:
            return
        current = self._at(record.decision.now + end.latency_s)
        current.ended += 1
        current.failed += not end.ok
        if end.ok and end.ttft_s is not None:
            current.ttft_s.observe(end.ttft_s)
        if end.cached_tokens is not None and end.prompt_tokens:
            current.found_tokens += end.cached_tokens
            current.prompt_tokens += end.prompt_tokens

    def answered(self, ttca_s: float, now: float) -> None:
        """Add the time to an answer reported as correct."""
        self._at(now).ttca_s.observe(ttca_s)

    def curves(self, now: float) -> dict[str, object]:
        """Return the last hour, oldest first; None if a bin has no value.

        `rate` is in decisions per second, `hits` is a share of prompt tokens, and `failed` is a
        share of ended requests; times are medians in seconds. The current bin is left out.
        """
        last, bins = math.floor(now / BIN_S), []
        for number in range(last - BINS + 1, last):
            kept = self._ring[number % BINS]
            bins.append(kept if kept.number == number else _Bin())
        return {
            "bin_s": BIN_S,
            "rate": [b.decisions / BIN_S for b in bins],
            "ttft_s": [b.ttft_s.median() for b in bins],
            "ttca_s": [b.ttca_s.median() for b in bins],
            "hits": [b.found_tokens / b.prompt_tokens if b.prompt_tokens else None for b in bins],
            "failed": [b.failed / b.ended if b.ended else None for b in bins],
        }

    def _at(self, now: float) -> _Bin:
        number = math.floor(now / BIN_S)
        at = number % BINS
        if self._ring[at].number != number:
            self._ring[at] = _Bin(number=number)
        return self._ring[at]
