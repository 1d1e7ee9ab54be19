"""Filters: which endpoints may serve a request at all.

Each takes the candidates left by the one before. The first group is about right and wrong (model,
subset) and may leave nothing. The second is about wisdom (reachable, not saturated): when it would
leave nothing it is skipped, since stale or alarming readings must never lock a fleet out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le

from laar.core.endpoints import EndpointTable, Slots
from laar.declaring import Applies

__all__ = ["FilterSettings", "in_subset", "reachable", "unsaturated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSettings:
    """Thresholds of the filters."""

    applies: ClassVar = Applies.AT_ONCE

    max_failures: Annotated[int, Ge(1), Le(1000)] = 3
    """Probes failed in a row before an endpoint is passed over. One can be chance, three in a row
    are not."""
    max_waiting: Annotated[float, Ge(0)] = 128.0
    """Requests waiting in the engine above which the endpoint is passed over."""
    max_kv_usage: Annotated[float, Gt(0), Le(1)] = 0.98
    """Share of the KV cache in use above which the endpoint is passed over: beyond it engines
    preempt."""
    stale_s: Annotated[float, Gt(0), Le(3600)] = 10.0
    """Seconds after which a reading says nothing about saturation any more; ten missed scrapes."""


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
