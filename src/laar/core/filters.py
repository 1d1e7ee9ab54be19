"""Filters: which endpoints may serve a request at all.

Each takes the candidates left by the one before. The first group is about right and wrong (model,
subset) and may leave nothing. The second is about wisdom (reachable, not saturated): when it would
leave nothing it is skipped, since stale or alarming readings must never lock a fleet out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from laar.core.endpoints import EndpointTable, Slots

__all__ = ["FilterSettings", "in_subset", "reachable", "unsaturated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSettings:
    """Thresholds of the filters.

    Args:
        max_failures: collectors' failures in a row after which an endpoint counts as unreachable.
        max_waiting: requests waiting in the engine above which it counts as saturated.
        max_kv_usage: share of the KV cache in use above which it counts as saturated.
        stale_s: readings older than this say nothing about saturation.
    """

    max_failures: int = 3
    max_waiting: float = 128.0
    max_kv_usage: float = 0.98
    stale_s: float = 10.0


def in_subset(table: EndpointTable, slots: Slots, subset: Iterable[str]) -> Slots:
    """The candidates that a subset hint names, by ``ip:port`` or by ``ip`` alone."""
    named = {slot for item in subset for slot in table.named(item)}
    return np.intersect1d(slots, np.fromiter(named, np.intp, len(named)), assume_unique=True)


def reachable(table: EndpointTable, slots: Slots, settings: FilterSettings) -> Slots:
    """Drops endpoints that the collectors cannot reach, unless that would drop all."""
    keep = slots[table.failures[slots] < settings.max_failures]
    return keep if len(keep) else slots


def unsaturated(table: EndpointTable, slots: Slots, settings: FilterSettings, now: float) -> Slots:
    """Drops endpoints with fresh readings over a threshold, unless that would drop all."""
    # NaN compares false: unknown and never read are not saturated, and not idle either.
    fresh = now - table.read_at[slots] <= settings.stale_s
    over = (table.waiting[slots] > settings.max_waiting) | (
        table.kv_usage[slots] > settings.max_kv_usage
    )
    keep = slots[~(fresh & over)]
    return keep if len(keep) else slots
