"""Metrics of the tuner: the weights it has found so far, and how often it has tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric

from laar.telemetry.families import counter, gauge


def tuner_families(shown: Callable[[], Mapping[str, Any]] | None) -> Iterator[Metric]:
    """Reads the tuner, at each scrape.

    Args:
        shown: the tuner's export; None where nothing is tuned, which leaves the families empty.
    """
    found = shown() if shown is not None else None
    cost_s = found["cost_s"] if found else None
    yield gauge(
        "laar_tuner_weight",
        "Weights of the cost that gave the best objective so far.",
        found["weights"].items() if found else (),
        ("weight",),
    )
    yield gauge(
        "laar_tuner_cost_seconds",
        "Objective of the best weights, in seconds.",
        () if cost_s is None else cost_s,
    )
    yield counter(
        "laar_tuner_windows",
        "Windows that the tuner has measured.",
        found["trials"] if found else (),
    )
