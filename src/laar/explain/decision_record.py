"""The record that explains a decision.

It refers to the decision and to the arrays that the scorers saw. A record takes a few microseconds
(`laar.telemetry.decisions`), so every decision can have one; rows and text are built from it on
demand. They never show any part of the prompt, which is dropped when the request ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from laar.core.decision import Completion, Decision
from laar.fleet.endpoints import Floats, Mask
from laar.fleet.membership import EndpointSpec


@dataclass(frozen=True, slots=True)
class TableState:
    """Columns of the endpoint table at the decision, kept only if a filter removed an endpoint."""

    failures: Floats
    waiting: Floats
    kv_usage: Floats
    generates: Mask
    asleep: Floats


@dataclass(slots=True, kw_only=True)
class DecisionRecord:
    """A decision, and what was known when it was made.

    Args:
        time_s: wall-clock time of the decision.
        specs: the endpoints known at the time, by slot.
        readings: readings that explain why filters removed endpoints; None if they removed none.
        end: how the request ended; None until then.
        served: address of the endpoint that served it; empty until its end, or if unknown.
        answered: model of that endpoint; empty until the end, or if unknown.
        size_bytes: estimated memory that it takes.
    """

    decision: Decision
    time_s: float
    specs: Mapping[int, EndpointSpec]
    readings: TableState | None
    end: Completion | None = None
    served: str = ""
    answered: str = ""
    size_bytes: int = 0
