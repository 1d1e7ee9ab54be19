"""Metrics of flow control, read from the queue at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from laar.telemetry.families import Histogram, counter, gauge, histogram

if TYPE_CHECKING:
    from laar.flow.admission import Admission, Outcome

_QUEUE_BOUNDS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class FlowMetrics:
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
        queue, prefills = self._admission.queue, self._admission.prefills
        yield gauge(
            "laar_flow_waiting", "Requests that are held until an endpoint has room.", queue.waiting
        )
        yield gauge(
            "laar_flow_held_bytes", "Bytes of the bodies of held requests.", queue.held_bytes
        )
        yield gauge(
            "laar_flow_prefills",
            "Requests whose prefill flow control counts as in flight.",
            prefills.counted,
        )
        yield gauge(
            "laar_flow_prefill_pace",
            "Measured prefill seconds per second that c(m) predicts, learned from first tokens.",
            prefills.paces.items(),
            ("model",),
        )
        yield counter(
            "laar_flow_dispatched",
            "Requests that flow control sent to an endpoint after a wait.",
            queue.dispatched,
        )
        yield counter(
            "laar_flow_sheds",
            "Requests that flow control refused or dropped, by reason.",
            queue.sheds.items(),
            ("reason",),
        )
        yield histogram(
            "laar_flow_queue_seconds", "Seconds that requests waited in flow control.", self._queue
        )
