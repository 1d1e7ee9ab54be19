"""Metrics of endpoints that fail. Only those that ever did have series: the rest would say 1 and 0.

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
        health: what was learned.
        table: whose endpoints.
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
            "Requests that an endpoint failed, by kind: status, error, error-event, denied, cut, "
            "empty, hang, retried (Envoy went on to another), full; not the client's own faults.",
            labels=("endpoint", "kind"),
        )
        openings = CounterMetricFamily(
            "laar_endpoint_ejections",
            "Times that an endpoint was taken out because it failed.",
            labels=("endpoint",),
        )
        trials = CounterMetricFamily(
            "laar_endpoint_trials",
            "Requests sent to an endpoint that was out, to see whether it is back.",
            labels=("endpoint",),
        )
        state = GaugeMetricFamily(
            "laar_endpoint_breaker_state",
            "0 closed, 1 starting slowly, 2 a request of a client or of the picker is on trial, "
            "3 open: it gets nothing.",
            labels=("endpoint",),
        )
        answers = GaugeMetricFamily(
            "laar_endpoint_answers_ratio",
            "P(it answers), learned from outcomes; the price of its seconds is divided by it.",
            labels=("endpoint",),
        )
        pace = GaugeMetricFamily(
            "laar_endpoint_pace_ratio",
            "How many times slower it is than others with its model; 1 when not beyond chance.",
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
