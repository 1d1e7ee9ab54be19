"""Candidates: what the filters leave for a model name, worked out once and kept.

Requests come far more often than readings, so a group stands until a reading, the membership or a
second of time makes it old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laar.core.endpoints import EndpointTable, Floats, Slots
from laar.core.filters import FilterSettings, in_subset, reachable, unsaturated
from laar.core.roundtrip import fresh_rtt
from laar.errors import RequestError

__all__ = ["Candidates", "Group"]

MAX_AGE_S = 1.0
"""How long a group stands without news: readings go stale by time alone."""


@dataclass(slots=True, kw_only=True)
class Group:
    """The candidates for a model name.

    Args:
        able: endpoints that may serve it at all.
        models: the models of those.
        slots: the candidates: what the filters of wisdom left of `able`.
        model_id: index of each candidate's model in the table's `models`.
        rtt_s: round trip to each candidate; unknown ones count as the worst that is known.
        at: when it was worked out.
        readings: the table's count of readings then.
    """

    able: Slots
    models: frozenset[str]
    slots: Slots
    model_id: Slots
    rtt_s: Floats
    at: float
    readings: int


class Candidates:
    """Works the groups out and keeps them."""

    def __init__(
        self,
        table: EndpointTable,
        aliases: Mapping[str, Sequence[str]],
        filters: FilterSettings,
    ) -> None:
        self._table = table
        self._aliases = aliases
        self._filters = filters
        self._groups: dict[tuple[str, str], Group] = {}
        self._version = -1

    def group(self, model: str, subset: frozenset[str] | None, now: float, pool: str = "") -> Group:
        """The candidates for a model name, of one pool; every one of both when empty.

        Raises:
            RequestError: 404 when nobody serves the model, 503 when no endpoint is left.
        """
        if self._version != self._table.version:
            self._version = self._table.version
            self._groups.clear()  # at most one for each served name in each pool
        group = self._groups.get((pool, model)) if subset is None else None
        if (
            group is None
            or group.readings != self._table.readings
            or not 0.0 <= now - group.at < MAX_AGE_S
        ):
            group = self._work_out(model, subset, now, pool)
            if subset is None:
                self._groups[pool, model] = group
        return group

    def _work_out(self, model: str, subset: frozenset[str] | None, now: float, pool: str) -> Group:
        table = self._table
        if not len(table):
            raise RequestError(503, "no-endpoints", "no endpoint is known", retry_after_s=1)
        able = self._serving(model)
        if able is None:
            raise RequestError(404, "unknown-model", f"the model `{model[:200]}` does not exist")
        if pool:
            able = np.intersect1d(able, table.in_pool(pool), assume_unique=True)
        if subset is not None:
            able = in_subset(table, able, subset)
        if not len(able):
            raise RequestError(
                503, "no-candidates", "no endpoint may serve this request", retry_after_s=1
            )
        slots = reachable(table, able, self._filters)
        slots = unsaturated(table, slots, self._filters, now)
        return Group(
            able=able,
            models=frozenset(table.models[int(i)] for i in table.model_id[able]),
            slots=slots,
            model_id=table.model_id[slots],
            rtt_s=_settle_unknown(fresh_rtt(table.rtt_s[slots], table.rtt_at[slots], now)),
            at=now,
            readings=table.readings,
        )

    def _serving(self, name: str) -> Slots | None:
        models = self._aliases.get(name)
        if not name or (models is not None and not models):
            return self._table.active
        if models is None:
            return self._table.serving(name)
        empty: Slots = np.empty(0, np.intp)
        found = [self._table.serving(model) for model in (*models, name)]
        return np.unique(np.concatenate([empty, *(slots for slots in found if slots is not None)]))


def _settle_unknown(rtt_s: Floats) -> Floats:
    """Unknown round trips count as the worst known one: unknown is not near."""
    unknown = np.isnan(rtt_s)
    if not unknown.any():
        return rtt_s
    worst = 0.0 if unknown.all() else float(np.nanmax(rtt_s))
    return np.where(unknown, worst, rtt_s)
