"""Metrics of the tuner: the weights it has found so far, and how often it has tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["TunerMetrics"]


class TunerMetrics(Collector):
    """Reads the tuner at each scrape.

    Args:
        shown: the tuner's export; None where nothing is tuned, which leaves the families empty.
    """

    def __init__(self, shown: Callable[[], Mapping[str, Any]] | None) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        """Makes the metric families; called for each scrape."""
        weights = GaugeMetricFamily(
            "laar_tuner_weight",
            "Weights of the cost that gave the best objective so far.",
            labels=("weight",),
        )
        cost = GaugeMetricFamily(
            "laar_tuner_cost_seconds", "Objective of the best weights, in seconds."
        )
        windows = CounterMetricFamily("laar_tuner_windows", "Windows that the tuner has measured.")
        if self._shown is not None:
            found = self._shown()
            for name, value in found["weights"].items():
                weights.add_metric((name,), value)
            if found["cost_s"] is not None:
                cost.add_metric((), found["cost_s"])
            windows.add_metric((), found["trials"])
        yield weights
        yield cost
        yield windows
