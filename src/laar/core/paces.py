"""Each endpoint's pace relative to the others with its model.

There are two paces, to the first token and after it; each serves as a prior for the other. A
pace differs from 1 only if its samples stand out from their scatter, and old samples have little
weight, so equal endpoints cost the same and share the load. `laar.core.engines` has the terms that
the paces multiply.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from laar.core.endpoints import EndpointTable, Floats, Slots

_MOST_LOG = math.log(20.0)  # cap on a pace: devices under one model name differ by less
_MEMORY = 60.0  # effective number of samples
_DOUBT = 1.0  # weight of the prior pace of 1, in samples
_TIE = 10.0  # weight of the mean of both paces in each of them, in samples
_SURE = 3.0  # standard errors within which a pace is considered equal to 1
_EVEN = 0.1  # in log units: smaller deviations are mostly errors of the linear models
_MEMORY_S = 600.0  # a slow endpoint gets few requests, often minutes apart
_TOGETHER = 8  # every eighth sample, of whichever model, updates its model's paces

_Log = Annotated[float, Meta(gt=-1e4, lt=1e4)]
_Count = Annotated[float, Meta(ge=0, lt=1e4)]
_State = tuple[_Log, _Count, _Count, _Log, _Count, _Count]


class Paces:
    """The paces of all endpoints, by slot.

    `first` and `rest` are the two paces, 1 until samples show otherwise.

    Args:
        table: the endpoints.
    """

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._learned = 0
        self.first: Floats = np.empty(0)
        self.rest: Floats = np.empty(0)
        self._columns: Floats = np.empty((6, 0))  # log, weight, scatter: of `first`, `rest`
        self._paced_at: Floats = np.empty(0)

    def grow(self, size: int) -> None:
        """Grow to the table's size."""
        more = size - len(self.first)
        self._columns = np.pad(self._columns, ((0, 0), (0, more)))
        self._paced_at = np.pad(self._paced_at, (0, more))
        self.first = np.pad(self.first, (0, more), constant_values=1.0)
        self.rest = np.pad(self.rest, (0, more), constant_values=1.0)

    def learn(
        self, slot: int, ratio: float, weight: float, as_of: float, *, first: bool
    ) -> tuple[float, float] | None:
        """Learn from an answer; return how much the paces of the endpoint's model changed.

        That is the mean absolute change in log `first` and log `rest`, weighted by samples; None
        if the paces are updated only after further answers.

        Args:
            slot: the endpoint.
            ratio: the time that the answer took, divided by the usual time with this model.
            weight: weight of the sample.
            as_of: the time to which older samples are decayed.
            first: whether this is the time to the first token rather than the time after it.
        """
        logs, seen, scatter = self._columns[:3] if first else self._columns[3:]
        keep = 1.0 - weight / _MEMORY
        log = min(_MOST_LOG, max(-_MOST_LOG, math.log(max(ratio, 1e-9))))
        before = seen.item(slot)
        if before > 0.0:
            miss = weight * (log - logs.item(slot) / before)
            scatter[slot] = scatter.item(slot) * keep * keep + miss * miss
        logs[slot] = logs.item(slot) * keep + weight * log
        seen[slot] = before * keep + weight
        model_id = self._table.model_id[slot]
        self._learned += 1
        if self._learned < _TOGETHER or model_id < 0:  # its endpoint is leaving
            return None
        self._learned = 0
        return self._work_out(np.flatnonzero(self._table.model_id == model_id), as_of)

    def relative(self) -> Floats:
        """Return the larger pace of each slot over the median of its model's endpoints.

        It is 1 while chance explains the difference.
        """
        paces: Floats = np.maximum(self.first, self.rest)
        for model_id in np.unique(self._table.model_id[paces != 1.0]):
            same = np.flatnonzero(self._table.model_id == model_id)
            # The lower median: of two endpoints, the slower one is slow.
            paces[same] /= np.sort(paces[same])[(len(same) - 1) // 2]
        return paces

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self._columns[:, slot] = 0.0
        self._paced_at[slot] = 0.0
        self.first[slot] = self.rest[slot] = 1.0

    def state(self, slot: int) -> list[float] | None:
        """Return the learned pace of an endpoint as plain numbers; None if it has no samples."""
        known: list[float] = self._columns[:, slot].tolist()
        _, first_seen, _, _, rest_seen, _ = known
        return known if first_seen + rest_seen > 0.0 else None

    def restore(self, slot: int, known: object) -> None:
        """Restore a result of `state`, to be applied by `work_out_all`; skip invalid parts."""
        with suppress(msgspec.ValidationError, RecursionError):
            self._columns[:, slot] = msgspec.convert(known, _State)
            self._paced_at[slot] = math.inf  # fading starts with the first request

    def work_out_all(self, as_of: float) -> None:
        """Update the paces of all endpoints."""
        for model_id in range(len(self._table.models)):
            self._work_out(np.flatnonzero(self._table.model_id == model_id), as_of)

    def _work_out(self, same: Slots, as_of: float) -> tuple[float, float]:
        """Update the paces of a model's endpoints; return their mean changes, as `learn` does."""
        changes = []
        known = self._columns.take(same, axis=1)
        if as_of > -math.inf:
            passed_s = np.maximum(as_of - self._paced_at[same], 0.0)
            self._paced_at[same] = as_of
            known *= np.exp(-passed_s / _MEMORY_S)
            self._columns[:, same] = known
        first_logs, first_seen, first_scatter, rest_logs, rest_seen, rest_scatter = known
        weights = first_seen + rest_seen
        total = float(np.add.reduce(weights))
        both = (first_logs + rest_logs) / (weights + _DOUBT)
        scatter = float(np.add.reduce(first_scatter) + np.add.reduce(rest_scatter))
        doubt = _SURE**2 * scatter / max(total, 1e-9)
        for own, count, pace in (
            (first_logs, first_seen, self.first),
            (rest_logs, rest_seen, self.rest),
        ):
            logs = (own + _TIE * both) / (count + _TIE)
            # Make the paces relative to each other: what they all share is in the model's lines.
            mean = float(logs @ weights) / total if total > 0.0 else 0.0
            logs -= mean
            # Breiman's garrote: 0 within the scatter, and nearly the full deviation far outside it.
            seen = np.minimum(count + _TIE, weights)
            far = logs * logs * seen
            shown = np.maximum(0.0, 1.0 - (doubt + _EVEN**2 * seen) / np.maximum(far, 1e-12))
            logs = np.minimum(np.maximum(logs * shown, -_MOST_LOG), _MOST_LOG)
            change = np.abs(logs - np.log(pace[same]))
            changes.append(float(change @ weights) / max(total, 1e-9))
            pace[same] = np.exp(logs)
        return changes[0], changes[1]
