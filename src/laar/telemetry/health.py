"""Metrics of endpoints that fail. Only those that ever did have series: others would show 1 and 0.

Labels are addresses from the settings and a fixed list of kinds. An endpoint that leaves takes its
series along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from laar.core.endpoints import EndpointTable
from laar.health import Health

__all__ = ["HealthMetrics"]

_STATES = {"closed": 0, "starting": 1, "suspect": 2, "trial": 2, "open": 3}


class HealthMetrics(Collector):
    """Reads health at each scrape.

    Args:
        health: the health of endpoints to read.
        table: the endpoints.
        clock: monotonic seconds.
    """

    def __init__(self, health: Health, table: EndpointTable, *, clock: Callable[[], float]) -> None:
        self._health = health
        self._table = table
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Makes the metric families; called for each scrape."""
        now = self._clock()
        failures = CounterMetricFamily(
            "laar_endpoint_failures",
            "Requests that failed at an endpoint, by kind: status, error, error-event, "
            "denied, cut, empty, hang, retried (Envoy tried another endpoint), full. "
            "Faults of clients do not count.",
            labels=("endpoint", "kind"),
        )
        openings = CounterMetricFamily(
            "laar_endpoint_ejections",
            "Times that the endpoint was taken out of service because requests failed there.",
            labels=("endpoint",),
        )
        trials = CounterMetricFamily(
            "laar_endpoint_trials",
            "Requests sent on trial to the endpoint while it was out of service.",
            labels=("endpoint",),
        )
        state = GaugeMetricFamily(
            "laar_endpoint_breaker_state",
            "State of the endpoint's breaker: 0 closed, 1 slow start, 2 half open (one "
            "request is on trial), 3 open (no requests).",
            labels=("endpoint",),
        )
        answers = GaugeMetricFamily(
            "laar_endpoint_answers_ratio",
            "Probability that the endpoint answers, learned from outcomes. Its expected "
            "seconds are divided by it.",
            labels=("endpoint",),
        )
        pace = GaugeMetricFamily(
            "laar_endpoint_pace_ratio",
            "Factor by which the endpoint is slower than others with the same model; 1 if "
            "chance explains the difference.",
            labels=("endpoint",),
        )
        for slot, known in self._health.known():
            breaker = known.breaker
            if not known.failures and not breaker.openings and known.pace == 1.0:
                continue
            address = self._table.address(slot)
            for kind, count in known.failures.items():
                failures.add_metric((address, str(kind)), count)
            openings.add_metric((address,), breaker.openings)
            trials.add_metric((address,), breaker.trials)
            state.add_metric((address,), _STATES[breaker.state])
            answers.add_metric((address,), self._health.answers(slot, now))
            pace.add_metric((address,), known.pace)
        yield from (failures, openings, trials, state, answers, pace)
