"""Each endpoint's pace relative to the others with its model.

There are two paces, to the first token and after it; each serves as a prior for the other. A
pace differs from 1 only if its samples stand out from their scatter, and old samples have little
weight, so equal endpoints cost the same and share the load. `laar.speeds.engines` has the terms
that the paces multiply.

An endpoint with few samples may be much faster or slower than they suggest. `outlook` has both: the
pace that its samples suggest, and the one that is still possible (`laar.plugins.trying`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from laar.fleet.endpoints import EndpointTable, Floats, Slots
from laar.speeds.engine_model import ERROR

_MOST_LOG = math.log(20.0)  # cap on a pace: devices under one model name differ by less
_MEMORY = 60.0  # effective number of samples
_DOUBT = 1.0  # weight of the prior pace of 1, in samples
_TIE = 10.0  # weight of the mean of both paces in each of them, in samples
_SURE = 3.0  # standard errors within which a pace is considered equal to 1
_EVEN = 0.1  # in log units: smaller deviations are mostly errors of the linear models
_MOST_AGE_S = 1e6
_MEMORY_S = 600.0  # a slow endpoint gets few requests, often minutes apart
_TOGETHER = 8  # every eighth sample, of whichever model, updates its model's paces
_PROVEN = 10.0  # answers after which an endpoint's pace is known
_HOPE = math.log(5.0)  # how much faster than its siblings an endpoint may be that has not answered
_QUARTER = 0.25  # of a try that another answer counts

_Log = Annotated[float, Meta(gt=-1e4, lt=1e4)]
_Count = Annotated[float, Meta(ge=0, lt=1e4)]
_Pace = tuple[_Log, _Count, _Count, _Log, _Count, _Count]
_Age = Annotated[float, Meta(ge=0)]
_State = tuple[_Pace, _Count, tuple[_Age, _Age]]


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
        self.tries: Floats = np.empty(0)
        """Recent requests that went to an endpoint only because its pace is not known, and a
        quarter of its other answers: if forty did not show it, it hardly matters."""
        self._outlook: tuple[Slots, Sequence[str], tuple[Floats, Floats] | None] | None = None
        """The latest result of `outlook`, for which slots and models, until it changes."""
        self._columns: Floats = np.empty((6, 0))  # log, weight, scatter: of `first`, `rest`
        self._paced_at: Floats = np.empty((2, 0))  # of the last fading; of the latest sample
        self._levels: Floats = np.empty((2, 0))  # what the logarithms are relative to

    def grow(self, size: int) -> None:
        """Grow to the table's size."""
        more = size - len(self.first)
        self._columns = np.pad(self._columns, ((0, 0), (0, more)))
        self._paced_at = np.pad(self._paced_at, ((0, 0), (0, more)))
        self._levels = np.pad(self._levels, ((0, 0), (0, more)))
        self.tries = np.pad(self.tries, (0, more))
        self.first = np.pad(self.first, (0, more), constant_values=1.0)
        self.rest = np.pad(self.rest, (0, more), constant_values=1.0)

    def learn(
        self,
        slot: int,
        ratio: float,
        weight: float,
        as_of: float,
        levels: tuple[float, float],
        *,
        first: bool,
    ) -> tuple[float, float] | None:
        """Learn from an answer; return how much the paces of the endpoint's model changed.

        That is the mean absolute change in log `first` and log `rest`, weighted by samples; None
        if the paces are updated only after further answers.

        Args:
            slot: the endpoint.
            ratio: the time that the answer took, divided by the usual time with this model.
            weight: weight of the sample.
            as_of: the time to which older samples are decayed.
            levels: logarithms of the model's usual times to the first token and after it, as of
                this ratio, by which earlier ratios are restated.
            first: whether this is the time to the first token rather than the time after it.
        """
        logs, seen, scatter = self._columns[:3] if first else self._columns[3:]
        if self.tries.item(slot) < _PROVEN:
            self._outlook = None
        keep = 1.0 - weight / _MEMORY
        log = min(_MOST_LOG, max(-_MOST_LOG, math.log(max(ratio, 1e-9))))
        before, at = seen.item(slot), 0 if first else 1
        if before > 0.0:
            log += levels[at] - self._levels.item(at, slot)
            miss = weight * (log - logs.item(slot) / before)
            scatter[slot] = scatter.item(slot) * keep * keep + miss * miss
        else:
            self._levels[at, slot] = levels[at]
        logs[slot] = logs.item(slot) * keep + weight * log
        seen[slot] = before * keep + weight
        self._paced_at[1, slot] = as_of
        if not first:
            self.tries[slot] = min(self.tries.item(slot) + _QUARTER, _MEMORY)
        model_id = self._table.model_id[slot]
        self._learned += 1
        if self._learned < _TOGETHER or model_id < 0:  # its endpoint is leaving
            return None
        self._learned = 0
        same = np.flatnonzero(self._table.model_id == model_id)
        self._restate(same, levels)
        return self._work_out(same, as_of)

    def _restate(self, slots: Slots, levels: tuple[float, float]) -> None:
        """Restate logarithms of ratios to earlier usual times by the usual ones now."""
        now = np.array(levels)[:, np.newaxis]
        self._columns[::3, slots] += self._columns[1::3, slots] * (self._levels[:, slots] - now)
        self._levels[:, slots] = now

    def clocks(self, slots: Slots) -> Iterator[tuple[Floats, Floats, float]]:
        """Yield mean logarithms of the times to the first token, and the samples; then after it.

        The third value is a sample's standard deviation within endpoints; 1 before any is known.
        """
        for at in range(2):
            logs, count, scatter = self._columns[3 * at : 3 * at + 3, slots]
            noise = (scatter.sum() + 1.0) / (np.maximum(count - 1.0, 0.0).sum() + 1.0)
            means = logs / np.maximum(count, 1e-9) + self._levels[at, slots]
            yield means, count, max(math.sqrt(noise), ERROR)

    def outlook(self, slots: Slots) -> tuple[Floats, Floats] | None:
        """Return the likely and the best possible pace of some slots, over those in use.

        The best possible pace of an endpoint that is proven or was tried often enough is not
        better than its likely pace, which is 1; None if that holds for all.
        """
        kept, models = self._outlook, self._table.models
        if kept is None or kept[0] is not slots or kept[1] is not models:
            kept = self._outlook = slots, models, self._look_out(slots)
        return kept[2]

    def _look_out(self, slots: Slots) -> tuple[Floats, Floats] | None:
        first_logs, first_seen, _, rest_logs, rest_seen, _ = self._columns.take(slots, axis=1)
        answers = np.maximum(first_seen, rest_seen)
        open_ = (answers < _PROVEN) & (self.tries[slots] < _PROVEN)
        if not np.count_nonzero(open_):
            return None
        weights, model_id = first_seen + rest_seen, self._table.model_id[slots]
        logs = (first_logs + rest_logs) / (weights + _DOUBT)
        total = np.bincount(model_id, weights)
        usual = np.bincount(model_id, weights * logs) / np.maximum(total, 1e-9)
        likely = np.where(open_, np.exp(logs - usual[model_id]) / self.rest[slots], 1.0)
        # Standard deviations: half of the hope for the prior, `ERROR` for a sample.
        hope = np.exp(-_HOPE / np.sqrt(1.0 + answers * (0.5 * _HOPE / ERROR) ** 2))
        hope = np.where(open_, hope, 1.0)
        return likely, likely * hope

    def relative(self) -> Floats:
        """Return the larger pace of each slot over the lower median of its model's endpoints.

        It is 1 while chance explains the difference.
        """
        paces: Floats = np.maximum(self.first, self.rest)
        for model_id in np.unique(self._table.model_id[paces != 1.0]):
            same = np.flatnonzero(self._table.model_id == model_id)
            paces[same] /= np.sort(paces[same])[(len(same) - 1) // 2]
        return paces

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self._outlook = None
        self._columns[:, slot] = 0.0
        self.tries[slot] = 0.0
        self._paced_at[:, slot] = self._levels[:, slot] = 0.0
        self.first[slot] = self.rest[slot] = 1.0

    def state(
        self, same: Slots, as_of: float, levels: tuple[float, float]
    ) -> Iterator[tuple[int, list[object]]]:
        """Yield what a model's endpoints have shown, by slot, as plain numbers; not if nothing.

        `as_of` and `levels` are those of `learn`.
        """
        self._restate(same, levels)
        ages_s = np.fmin(np.fmax(as_of - self._paced_at[:, same], 0.0), _MOST_AGE_S)
        columns = self._columns[:, same], self.tries[same], ages_s
        rows = zip(*(of.T.tolist() for of in columns), strict=True)
        for slot, (own, tries, ages) in zip(same.tolist(), rows, strict=True):
            if tries or any(own):
                yield slot, [own, tries, ages]

    def restore(self, slot: int, known: object, as_of: float, levels: tuple[float, float]) -> None:
        """Restore a result of `state`, to be applied by `work_out_all`; skip invalid parts."""
        with suppress(msgspec.ValidationError, RecursionError):
            state = msgspec.convert(known, _State)
            self._columns[:, slot], self.tries[slot], ages_s = state
            self._levels[:, slot] = levels
            self._paced_at[:, slot] = as_of - np.array(ages_s)

    def work_out_all(self, as_of: float) -> None:
        """Update the paces of all endpoints."""
        for model_id in range(len(self._table.models)):
            self._work_out(np.flatnonzero(self._table.model_id == model_id), as_of)

    def _work_out(self, same: Slots, as_of: float) -> tuple[float, float]:
        """Update the paces of a model's endpoints; return their mean changes, as `learn` does."""
        changes = []
        self._outlook = None
        known, stale = self._columns.take(same, axis=1), 0.0
        if as_of > -math.inf:
            passed_s = np.maximum(as_of - self._paced_at[:, same], 0.0)
            self._paced_at[0, same] = as_of
            self._paced_at[1, same] = np.minimum(self._paced_at[1, same], as_of)
            faded, left = np.exp(-passed_s / _MEMORY_S)
            stale = _DOUBT * (1.0 - left)
            known *= faded
            self.tries[same] *= faded
            self._columns[:, same] = known
        first_logs, first_seen, first_scatter, rest_logs, rest_seen, rest_scatter = known
        weights = first_seen + rest_seen
        for own, count in ((first_logs, first_seen), (rest_logs, rest_seen)):
            # Relative to those with such samples: a prefiller has only first tokens.
            own -= count * (float(np.add.reduce(own)) / max(float(np.add.reduce(count)), 1e-9))
        total = float(np.add.reduce(weights))
        scatter = float(np.add.reduce(first_scatter) + np.add.reduce(rest_scatter))
        # The less the endpoints differ, beyond chance, the more they say about each other.
        noise = (scatter + ERROR**2) / (total + 1.0)
        both = (first_logs + rest_logs) / np.maximum(weights, 1e-9)
        sure = min(noise / max(_spread(both, weights, noise), 1e-9), _DOUBT)
        both *= weights / (weights + np.maximum(sure, stale))
        differ = _spread(both, weights, _SURE**2 * noise)  # certain, not only probable
        doubt = scatter / max(total, 1e-9) * min(max(noise / max(differ, 1e-9), 1.0), _SURE**2)
        apart = first_logs / np.maximum(first_seen, 1e-9) - rest_logs / np.maximum(rest_seen, 1e-9)
        pairs = first_seen * rest_seen / np.maximum(first_seen + rest_seen, 1e-9)
        tie = min(noise / max(_spread(apart, pairs, noise), 1e-9), _TIE)
        ties = np.maximum(tie, stale)
        for own, count, pace in (
            (first_logs, first_seen, self.first),
            (rest_logs, rest_seen, self.rest),
        ):
            logs = (own + ties * both) / np.maximum(count + ties, 1e-9)
            # Make the paces relative to each other: what they all share is in the model's lines.
            mean = float(logs @ weights) / total if total > 0.0 else 0.0
            logs -= mean
            # Breiman's garrote: 0 within the scatter, and nearly the full deviation far outside it.
            seen = np.minimum(count + ties, weights)
            far = logs * logs * seen
            shown = np.maximum(0.0, 1.0 - (doubt + _EVEN**2 * seen) / np.maximum(far, 1e-12))
            logs = np.minimum(np.maximum(logs * shown, -_MOST_LOG), _MOST_LOG)
            changes.append(float(np.abs(logs - np.log(pace[same])) @ weights) / max(total, 1e-9))
            pace[same] = np.exp(logs)
        return changes[0], changes[1]


def _spread(values: Floats, weights: Floats, noise: float) -> float:
    """Return the variance of values beyond chance, if a sample's is `noise`.

    This is the estimate of DerSimonian and Laird; `weights` are numbers of samples.
    """
    total = float(np.add.reduce(weights))
    if total <= 0.0:
        return 0.0
    far = values - float(values @ weights) / total
    beyond = float(weights @ (far * far)) - noise * (np.count_nonzero(weights) - 1)
    return max(0.0, beyond) / max(total - float(weights @ weights) / total, 1e-9)
