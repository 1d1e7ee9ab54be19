"""Metrics of endpoints that fail. Only those that ever did have series: others would show 1 and 0.

Labels are addresses from the settings and a fixed list of kinds. An endpoint that leaves takes its
series along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from laar.core.endpoints import EndpointTable
from laar.health import Health
from laar.telemetry.families import counter, gauge

_STATES = {"closed": 0, "starting": 1, "suspect": 2, "trial": 2, "open": 3}


def health_families(
    health: Health, table: EndpointTable, clock: Callable[[], float]
) -> Iterator[Metric]:
    """Reads the health of endpoints, at each scrape; `clock` gives monotonic seconds."""
    now = clock()
    ailing = [
        (table.address(slot), slot, known)
        for slot, known in health.known()
        if known.failures or known.breaker.openings or known.pace != 1.0
    ]
    yield counter(
        "laar_endpoint_failures",
        "Requests that failed at an endpoint, by kind: status, error, error-event, "
        "denied, cut, empty, content-type, unreadable, other-model, hang, retried (Envoy tried "
        "another endpoint), full, request (it is the request's fault: other endpoints failed it "
        "too). "
        "Faults of clients do not count.",
        (((at, str(kind)), n) for at, _, known in ailing for kind, n in known.failures.items()),
        ("endpoint", "kind"),
    )
    yield counter(
        "laar_endpoint_ejections",
        "Times that the endpoint was taken out of service because requests failed there.",
        ((at, known.breaker.openings) for at, _, known in ailing),
        ("endpoint",),
    )
    yield counter(
        "laar_endpoint_trials",
        "Requests sent on trial to the endpoint while it was out of service.",
        ((at, known.breaker.trials) for at, _, known in ailing),
        ("endpoint",),
    )
    yield gauge(
        "laar_endpoint_breaker_state",
        "State of the endpoint's breaker: 0 closed, 1 slow start, 2 half open (one "
        "request is on trial), 3 open (no requests).",
        ((at, _STATES[known.breaker.state]) for at, _, known in ailing),
        ("endpoint",),
    )
    yield gauge(
        "laar_endpoint_answers_ratio",
        "Probability that the endpoint answers, learned from outcomes. Its expected "
        "seconds are divided by it.",
        ((at, health.answers(slot, now)) for at, slot, _ in ailing),
        ("endpoint",),
    )
    yield gauge(
        "laar_endpoint_pace_ratio",
        "Factor by which the endpoint is slower than others with the same model; 1 if "
        "chance explains the difference.",
        ((at, known.pace) for at, _, known in ailing),
        ("endpoint",),
    )
