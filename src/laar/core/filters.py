"""Filters: which endpoints may serve a request at all.

Each returns a mask of the candidates that passed the previous one. Hard filters (model, subset,
awake) may exclude all, since a sleeping engine answers nothing until it is woken. A soft filter
(reachable, not saturated) is skipped if it would exclude all (`unless_none`), since stale or
alarming readings must never lock out a fleet.
"""

from __future__ import annotations

from laar.fleet.endpoints import EndpointTable, Mask, Slots

MAX_FAILURES = 3
"""Consecutive failed probes after which an endpoint is excluded. One may be chance, but not three
in a row. A refused connection excludes it immediately, since nothing is listening there."""

MAX_KV_USAGE = 0.98
"""Share of the KV cache in use above which the endpoint is excluded: engines then start to
preempt."""

STALE_S = 10.0
"""Seconds after which a reading is ignored: ten missed scrapes."""


def unless_none(slots: Slots, keep: Mask) -> Slots:
    """Return the candidates that a mask keeps; all of them if it keeps none."""
    return slots[keep] if keep.any() else slots


def reachable(table: EndpointTable, slots: Slots) -> Mask:
    """Return the candidates that the collectors can reach."""
    return table.failures[slots] < MAX_FAILURES


def fresh(table: EndpointTable, slots: Slots, now: float) -> Mask:
    """Return which endpoints' readings are recent enough to be used."""
    keep: Mask = now - table.read_at[slots] <= STALE_S
    return keep


def awake(table: EndpointTable, slots: Slots, now: float) -> Mask:
    """Return the candidates except those that are asleep according to a fresh reading."""
    keep: Mask = (table.asleep[slots] == 0.0) | ~fresh(table, slots, now)
    return keep


def unsaturated(table: EndpointTable, slots: Slots, max_waiting: float, now: float) -> Mask:
    """Return the candidates except those that exceed a limit according to a fresh reading."""
    # NaN compares false, so unknown endpoints are not saturated, but not idle either.
    over = (table.waiting[slots] > max_waiting) | (table.kv_usage[slots] > MAX_KV_USAGE)
    return ~(fresh(table, slots, now) & over)
