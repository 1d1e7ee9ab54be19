"""Slack orders: which request is next (Medha, 4.1).

Slack is the time a request can still lose: s = arrival + objective - now - remaining work. LARS
orders by relative slack, rho = s / total work: two requests with 2 s of slack are not equally at
risk if one has 5 s of work ahead and the other 100 s.

Each order is a function from a request's numbers to a line, `(offset_s, rate)`, whose height at any
time is `(offset_s - now) * rate`; the lowest goes first. A line stays valid until the remaining
work changes, so a queue keeps two floats per request and never re-keys as time passes. All five
orders in the paper's table have this form; the lab has the other three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

MIN_WORK_S = 1e-3
"""Minimum work of a request: about one iteration of a fast engine; also keeps rho finite."""

RHO_MAX = 0.4
"""Largest share of an iteration that a long prefill with slack leaves to others (algorithm 2); a
long request with more relative slack than this lets every short one go before it."""


class Line(NamedTuple):
    """A request's urgency over time: `(offset_s - now) * rate`; lower is more urgent."""

    offset_s: float
    rate: float


Order = Callable[[float, float, float, float], Line]
"""(arrival_s, objective_s, total_s, remaining_s) -> Line; work is what it takes when run alone."""


def _lars(arrival_s: float, objective_s: float, total_s: float, remaining_s: float) -> Line:
    return Line(arrival_s + objective_s - remaining_s, 1.0 / max(total_s, MIN_WORK_S))


def _fcfs(arrival_s: float, objective_s: float, total_s: float, remaining_s: float) -> Line:
    return Line(arrival_s, 1.0)


ORDERS: Mapping[str, Order] = {"lars": _lars, "fcfs": _fcfs}
"""Length-aware relative slack (LARS); first come, first served (FCFS), for comparison."""
