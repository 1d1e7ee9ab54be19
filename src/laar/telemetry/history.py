"""The last hour, in memory, for the page's curves; Prometheus keeps all labels for longer.

A ring of one-minute bins. A decision costs one addition, and a request's end a few. Only a bounded
sample of request times is kept.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np

from laar.core.decision import Decision
from laar.explain.decision_record import DecisionRecord

BIN_S = 60.0
BINS = 61
"""Number of bins: an hour, to look back on after an alarm, and the current minute."""
MAX_SAMPLES = 200
"""Maximum number of times kept per bin, sampled uniformly; the p50 is accurate to a few percent.
With two kinds of times the ring takes at most 250 KB."""


@dataclass(slots=True)
class _Sample:
    """A bounded, uniform sample of values."""

    values: list[float] = field(default_factory=list)
    seen: int = 0

    def add(self, value: float, rng: random.Random) -> None:
        self.seen += 1
        if len(self.values) < MAX_SAMPLES:
            self.values.append(value)
        elif (at := rng.randrange(self.seen)) < MAX_SAMPLES:
            self.values[at] = value

    def median(self) -> float | None:
        return float(np.median(self.values)) if self.values else None


@dataclass(slots=True)
class _Bin:
    number: int = -1
    decisions: int = 0
    ended: int = 0
    failed: int = 0
    found_tokens: float = 0.0
    prompt_tokens: float = 0.0
    ttft_s: _Sample = field(default_factory=_Sample)
    ttca_s: _Sample = field(default_factory=_Sample)


class History:
    """Collects decisions, ends of requests and judged answers into curves."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
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
            current.ttft_s.add(end.ttft_s, self._rng)
        if end.cached_tokens is not None and end.prompt_tokens:
            current.found_tokens += end.cached_tokens
            current.prompt_tokens += end.prompt_tokens

    def answered(self, ttca_s: float, now: float) -> None:
        """Add the time to an answer reported as correct."""
        self._at(now).ttca_s.add(ttca_s, self._rng)

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
