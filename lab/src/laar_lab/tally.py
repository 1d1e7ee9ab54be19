"""Metrics of an open-loop run, in memory that does not grow with the run.

Times go into histograms with geometric buckets 0.1 % wide, so a percentile of ten million requests
takes no more memory than one of ten, and is exact to 0.05 %.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from laar_lab.sim.fleet import Arrival, Exchange

_WIDTH = 0.001  # of a bucket, in the logarithm
_LEAST_S, _MOST_S = 1e-5, 1e6

METRICS = {
    "ttft_p50_s": "TTFT p50 s",
    "ttft_p95_s": "p95",
    "ttft_p99_s": "p99",
    "late_p95_s": "p95 from schedule",
    "tpot_p50_ms": "TPOT p50 ms",
    "e2e_p50_s": "E2E p50 s",
    "e2e_p95_s": "p95",
    "e2e_p99_s": "p99",
    "hit_rate": "hit rate",
    "concentration": "busiest's share",
    "success": "success",
    "ttca_s": "TTCA s",
    "requests_per_s": "req/s",
}
"""Numbers of `Tally.numbers` and their headings."""


MEANS = {
    "ttft_mean_s": "TTFT mean s",
    "e2e_mean_s": "E2E mean s",
    "requests": "requests",
    "failed": "failed",
    "span_s": "first to last request s",
}
"""Other numbers of `Tally.numbers` and their headings."""


class Histogram:
    """Counts of positive numbers; values beyond its range go into the first or last bucket."""

    def __init__(self) -> None:
        self._counts = np.zeros(int(math.log(_MOST_S / _LEAST_S) / _WIDTH) + 2, np.int64)
        self.total = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        """Count one value."""
        self.total += value
        self.count += 1
        place = int(math.log(max(value, _LEAST_S) / _LEAST_S) / _WIDTH)
        self._counts[min(place, len(self._counts) - 1)] += 1

    def percentile(self, share: float) -> float:
        """Return the value not exceeded by a share (0..1) of all values; NaN if there are none."""
        if not self.count:
            return math.nan
        place = int(np.searchsorted(np.cumsum(self._counts), math.ceil(share * self.count)))
        return _LEAST_S * math.exp((place + 0.5) * _WIDTH)

    @property
    def mean(self) -> float:
        """The mean; NaN if there are no values."""
        return self.total / self.count if self.count else math.nan


class Tally:
    """Collects the metrics of exchanges as they end.

    TTFT and end-to-end latency are measured from dispatch. `late` is the TTFT measured from the
    scheduled time, and so includes the wait at the client.
    """

    def __init__(self) -> None:
        self.ttft, self.late, self.e2e, self.tpot = (Histogram() for _ in range(4))
        self.by_endpoint: Counter[str] = Counter()
        self.failed = 0
        self.prompt_tokens = self.cached_tokens = 0
        self.first_s, self.last_s = math.inf, 0.0

    def add(self, arrival: Arrival, exchange: Exchange) -> None:
        """Count one request."""
        self.by_endpoint[exchange.decision.address] += 1
        self.first_s = min(self.first_s, exchange.sent_s)
        self.last_s = max(self.last_s, exchange.end_s)
        if exchange.status != 200:
            self.failed += 1
            return
        prompt = exchange.prompt
        self.ttft.add(exchange.first_s - exchange.sent_s)
        self.late.add(exchange.first_s - arrival.at_s)
        self.e2e.add(exchange.latency_s)
        if prompt.output_tokens > 1:
            decode_s = exchange.end_s - exchange.first_s
            self.tpot.add(decode_s / (prompt.output_tokens - 1))
        self.prompt_tokens += prompt.prompt_tokens
        self.cached_tokens += exchange.cached_tokens

    def numbers(self) -> dict[str, float]:
        """Return the metrics by their names in `METRICS` and `MEANS`.

        Since there is no ground truth, every answer is considered correct: `ttca_s` is then the
        mean end-to-end latency divided by the success rate.
        """
        count = self.by_endpoint.total()
        success = self.e2e.count / count if count else math.nan
        span_s = self.last_s - self.first_s
        return {
            "ttft_p50_s": self.ttft.percentile(0.5),
            "ttft_p95_s": self.ttft.percentile(0.95),
            "ttft_p99_s": self.ttft.percentile(0.99),
            "late_p95_s": self.late.percentile(0.95),
            "tpot_p50_ms": self.tpot.percentile(0.5) * 1e3,
            "e2e_p50_s": self.e2e.percentile(0.5),
            "e2e_p95_s": self.e2e.percentile(0.95),
            "e2e_p99_s": self.e2e.percentile(0.99),
            "hit_rate": self.cached_tokens / max(1, self.prompt_tokens),
            "concentration": max(self.by_endpoint.values(), default=0) / max(1, count),
            "success": success,
            "ttca_s": self.e2e.mean / success if success else math.nan,
            "requests_per_s": count / span_s if span_s > 0 else math.nan,
            "ttft_mean_s": self.ttft.mean,
            "e2e_mean_s": self.e2e.mean,
            "requests": count,
            "failed": self.failed,
            "span_s": span_s,
        }
