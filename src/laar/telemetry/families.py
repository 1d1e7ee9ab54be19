"""Metric families, each made in one call at a scrape."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

Samples: TypeAlias = "float | Iterable[tuple[str | Sequence[str], float]]"
"""One value without labels, or the samples by their labels' values; a name alone is one label's."""


def counter(name: str, text: str, samples: Samples, labels: Sequence[str] = ()) -> Metric:
    """A counter."""
    return _filled(CounterMetricFamily(name, text, labels=labels), samples)


def gauge(name: str, text: str, samples: Samples, labels: Sequence[str] = ()) -> Metric:
    """A gauge."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), samples)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, samples: Samples) -> Metric:
    for key, value in samples if isinstance(samples, Iterable) else [((), samples)]:
        family.add_metric((key,) if isinstance(key, str) else key, value)
    return family


class Histogram:
    """A histogram with fixed bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Writes the cumulative buckets into a metric family."""
        total = 0
        buckets = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
        family.add_metric(labels, buckets, self._sum)


def histogram(
    name: str,
    text: str,
    samples: Histogram | Mapping[str, Histogram],
    labels: Sequence[str] = (),
) -> Metric:
    """A histogram, or those of one label by its values."""
    family = HistogramMetricFamily(name, text, labels=labels)
    if isinstance(samples, Histogram):
        samples.add_to(family)
    else:
        for key, each in samples.items():
            each.add_to(family, (key,))
    return family
