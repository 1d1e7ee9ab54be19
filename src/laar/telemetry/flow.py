"""Metrics of flow control, read from the queue at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from laar.flow.admission import Admission, Outcome
from laar.telemetry.metrics import Histogram

__all__ = ["FlowMetrics"]

_QUEUE_BOUNDS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class FlowMetrics(Collector):
    """Requests that wait, that were sent, and that were shed and why.

    Args:
        admission: the flow control to read.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._queue = Histogram(_QUEUE_BOUNDS_S)

    def waited(self, outcome: Outcome) -> None:
        """Counts how long a request waited, whatever its outcome."""
        self._queue.observe(outcome.waited_s)

    def collect(self) -> Iterator[Metric]:
        """Makes the metric families; called for each scrape."""
        queue = self._admission.queue
        for name, help_text, value in (
            (
                "laar_flow_waiting",
                "Requests that are held until an endpoint has room.",
                queue.waiting,
            ),
            ("laar_flow_held_bytes", "Bytes of the bodies of held requests.", queue.held_bytes),
            (
                "laar_flow_prefills",
                "Requests whose prefill flow control counts as in flight.",
                self._admission.prefills.counted,
            ),
        ):
            yield GaugeMetricFamily(name, help_text, value=value)
        pace = GaugeMetricFamily(
            "laar_flow_prefill_pace",
            "Measured prefill seconds per second that c(m) predicts, learned from first tokens.",
            labels=("model",),
        )
        for model, learned in self._admission.prefills.paces.items():
            pace.add_metric((model,), learned)
        yield pace
        yield CounterMetricFamily(
            "laar_flow_dispatched",
            "Requests that flow control sent to an endpoint after a wait.",
            value=queue.dispatched,
        )
        sheds = CounterMetricFamily(
            "laar_flow_sheds",
            "Requests that flow control refused or dropped, by reason.",
            labels=("reason",),
        )
        for reason, count in queue.sheds.items():
            sheds.add_metric((reason,), count)
        yield sheds
        seconds = HistogramMetricFamily(
            "laar_flow_queue_seconds", "Seconds that requests waited in flow control."
        )
        self._queue.add_to(seconds)
        yield seconds
