"""Each endpoint's pace relative to the others with its model.

There are two paces, to the first token and after it; each serves as a prior for the other. A
pace differs from 1 only if its samples stand out from their scatter, and old samples have little
weight, so equal endpoints cost the same and share the load. `laar.core.engines` has the terms that
the paces multiply.

An endpoint that answers uselessly is fast, too. So one whose pace its siblings do not make
plausible, by any clock, is `quick`; while nothing explains that (`laar.health.explained`) it is
`held`: its pace is 1, it teaches its model nothing, and it gets a fair share of the requests for
its model, and no more (`over`). So do all quick ones where answers are not texts: nobody can tell
what those are worth. The label `laar.dev/fast` confirms a pace.

An endpoint with few samples may be much faster or slower than they suggest. `outlook` has both: the
pace that its samples suggest, and the one that is still possible (`laar.plugins.trying`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from laar.core.endpoints import EndpointTable, Floats, Mask, Slots
from laar.core.engine_model import ERROR
from laar.core.membership import FAST_LABEL

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
_IMPLAUSIBLE = math.log(1.5)  # an endpoint that much faster than the typical one is quick
_AT_ONCE = math.log(3.0)  # and one whose answers, of whatever length, end that much earlier
_STILL = 0.7  # how much of that keeps an endpoint quick
_ENDS = 40.0  # effective number of answers in these means
_FEW = 2.0  # minimum number of answers for a comparison with siblings
_KNOWN = 0.3  # minimum weight of an endpoint's answers, which fades, to compare its pace
_MOST_CREDIT = 2.0  # requests that a held endpoint may be behind its fair share

Explains = Callable[[int, float, Set[int], float], bool]
"""Returns whether anything explains a slot's pace (a logarithm), given the quick slots and now."""

_Log = Annotated[float, Meta(gt=-1e4, lt=1e4)]
_Count = Annotated[float, Meta(ge=0, lt=1e4)]
_Pace = tuple[_Log, _Count, _Count, _Log, _Count, _Count]
_Age = Annotated[float, Meta(ge=0)]
_State = tuple[_Pace, tuple[_Log, _Count, _Log, _Count], _Count, tuple[_Age, _Age]]


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
        self.quick: dict[int, float] = {}
        """The slots that are faster than their siblings make plausible, and the logarithm of their
        paces over those."""
        self.held: Mask = np.empty(0, np.bool_)
        """Whether a slot is quick and nothing explains that."""
        self.explains: Explains = lambda _slot, _pace, _quick, _now: True
        self.credit: Floats = np.empty(0)
        """Requests by which a quick slot is behind its fair share."""
        self.tries: Floats = np.empty(0)
        """Recent requests that went to an endpoint only because its pace is not known, and a
        quarter of its other answers: if forty did not show it, it hardly matters."""
        self._outlook: tuple[Slots, Sequence[str], tuple[Floats, Floats] | None] | None = None
        """The latest result of `outlook`, for which slots and models, until it changes."""
        self._columns: Floats = np.empty((6, 0))  # log, weight, scatter: of `first`, `rest`
        self._paced_at: Floats = np.empty((2, 0))  # of the last fading; of the latest sample
        self._levels: Floats = np.empty((2, 0))  # what the logarithms are relative to
        self._ends: Floats = np.empty((4, 0))
        # Mean log of the answers' seconds, and their number; the same for those of known length.

    def grow(self, size: int) -> None:
        """Grow to the table's size."""
        more = size - len(self.first)
        self._columns = np.pad(self._columns, ((0, 0), (0, more)))
        self._paced_at = np.pad(self._paced_at, ((0, 0), (0, more)))
        self._levels = np.pad(self._levels, ((0, 0), (0, more)))
        self._ends = np.pad(self._ends, ((0, 0), (0, more)))
        self.tries = np.pad(self.tries, (0, more))
        self.held = np.pad(self.held, (0, more))
        self.credit = np.pad(self.credit, (0, more))
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
        else:
            self._levels[at, slot] = levels[at]
        if before > 0.0:
            miss = weight * (log - logs.item(slot) / before)
            scatter[slot] = scatter.item(slot) * keep * keep + miss * miss
        logs[slot] = logs.item(slot) * keep + weight * log
        seen[slot] = before * keep + weight
        self._paced_at[1, slot] = as_of
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

    def ended(self, slot: int, seconds: float, tokens: int | None) -> None:
        """Learn how soon an answer ended, as at an idle endpoint, and its length if it is known."""
        self.tries[slot] = min(self.tries.item(slot) + _PROVEN / _ENDS, _MEMORY)
        ends = self._ends
        for row, value in ((0, seconds), (2, tokens)):
            if value:
                mean, seen = ends.item(row, slot), min(ends.item(row + 1, slot) + 1.0, _ENDS)
                ends[row, slot] = mean + (math.log(max(value, 1e-6)) - mean) / seen
                ends[row + 1, slot] = seen

    def sent(self, slot: int) -> None:
        """Count a request towards the fair shares of the quick slots of its model."""
        model_id, active = self._table.model_id, self._table.active
        same = active[model_id[active] == model_id[slot]]
        # Another model's requests count as well: it may be chosen only because nobody gets on here.
        is_same = model_id[: len(self.credit)] == model_id[slot]
        earned = np.where(is_same, 1.0 / max(len(same), 1), 1.0 / max(len(active), 1))
        self.credit = np.minimum(self.credit + earned, _MOST_CREDIT)
        self.credit[slot] = max(self.credit.item(slot) - 1.0, -1.0)

    def over(self, slots: Slots, *, is_text: bool) -> Mask | None:
        """Return which slots must not get another request yet; None if none.

        These are the held ones that have had their fair share; all quick ones unless answers are
        texts.
        """
        if not self.quick:
            return None
        quick = self.held[slots]
        if not is_text:
            quick = np.array(
                [slot in self.quick and not self._is_confirmed(slot) for slot in slots.tolist()]
            )
        over: Mask = quick & (self.credit[slots] < 0.0)
        return over if np.count_nonzero(over) else None

    def outlook(self, slots: Slots) -> tuple[Floats, Floats] | None:
        """Return the likely and the best possible pace of some slots, over those in use.

        The best possible pace of an endpoint that is proven, held or was tried often enough is not
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
        likely = np.exp(logs - usual[model_id]) / self.rest[slots]
        likely = np.where(open_, likely, 1.0)
        # Standard deviations: half of the hope for the prior, `ERROR` for a sample.
        hope = np.exp(-_HOPE / np.sqrt(1.0 + answers * (0.5 * _HOPE / ERROR) ** 2))
        hope = np.where(open_, hope, 1.0)
        return likely, likely * hope

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
        self._outlook = None
        self._columns[:, slot] = 0.0
        self._ends[:, slot] = 0.0
        self.tries[slot] = 0.0
        self._paced_at[:, slot] = self._levels[:, slot] = 0.0
        self.held[slot] = False
        self.credit[slot] = 0.0
        self.quick.pop(slot, None)
        self.first[slot] = self.rest[slot] = 1.0

    def state(
        self, same: Slots, as_of: float, levels: tuple[float, float]
    ) -> Iterator[tuple[int, list[object]]]:
        """Yield what a model's endpoints have shown, by slot, as plain numbers; not if nothing.

        `as_of` and `levels` are those of `learn`.
        """
        self._restate(same, levels)
        ages_s = np.fmin(np.fmax(as_of - self._paced_at[:, same], 0.0), _MOST_AGE_S)
        columns = self._columns[:, same], self._ends[:, same], self.tries[same], ages_s
        rows = zip(*(of.T.tolist() for of in columns), strict=True)
        for slot, (own, ends, tries, ages) in zip(same.tolist(), rows, strict=True):
            if tries or any(own):
                yield slot, [own, ends, tries, ages]

    def restore(self, slot: int, known: object, as_of: float, levels: tuple[float, float]) -> None:
        """Restore a result of `state`, to be applied by `work_out_all`; skip invalid parts."""
        with suppress(msgspec.ValidationError, RecursionError):
            state = msgspec.convert(known, _State)
            self._columns[:, slot], self._ends[:, slot], self.tries[slot], ages_s = state
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
        held = self._find_held(same, known, as_of)
        if held is not None:
            weights = np.where(held, 0.0, weights)
            first_scatter, rest_scatter = first_scatter * ~held, rest_scatter * ~held
        for own, count in ((first_logs, first_seen), (rest_logs, rest_seen)):
            # Relative to those with such samples: a prefiller has only first tokens.
            of = count if held is None else count * ~held
            mean = float(own @ (of > 0.0)) / max(float(np.add.reduce(of)), 1e-9)
            own -= count * mean
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
            if held is not None:
                logs[held] = 0.0
            change = np.abs(logs - np.log(pace[same]))
            changes.append(float(change @ weights) / max(total, 1e-9))
            pace[same] = np.exp(logs)
        return changes[0], changes[1]

    def _find_held(self, same: Slots, known: Floats, as_of: float) -> Mask | None:
        """Set `quick` and `held` for a model's endpoints, and return the latter; None if none is.

        `known` are the columns of its endpoints.
        """
        first_logs, first_seen, _, rest_logs, rest_seen, _ = known
        ends, answers, _, counted = self._ends.take(same, axis=1)
        limit = np.where(counted >= _FEW, _IMPLAUSIBLE - _AT_ONCE, 0.0)
        # The fewer answers, the more chance explains.
        paces = _relative(ends, answers >= _FEW) + 2.0 / np.sqrt(np.maximum(answers, 1.0)) - limit
        for logs, seen in ((first_logs, first_seen), (rest_logs, rest_seen)):
            pace = _relative(logs / np.maximum(seen, 1e-9), seen >= _KNOWN)
            paces = np.minimum(paces, pace + _SURE * ERROR / np.sqrt(np.maximum(seen, 1.0)))
        was = np.array([slot in self.quick for slot in same.tolist()], np.bool_)
        quick = paces < -_IMPLAUSIBLE * np.where(was, _STILL, 1.0)
        held = np.zeros(len(same), np.bool_)
        for at in np.flatnonzero(was & ~quick).tolist():
            del self.quick[same.item(at)]
        for at in np.flatnonzero(quick).tolist():
            self.quick[same.item(at)] = paces.item(at)
        for at in np.flatnonzero(quick).tolist():
            slot = same.item(at)
            held[at] = not (
                self._is_confirmed(slot)
                or self.explains(slot, paces.item(at), self.quick.keys(), as_of)
            )
        self.credit[same[quick & ~was]] = 0.0
        self.held[same] = held
        # Too few answers explain nothing: until there are more, only the share is bounded.
        held = held & (np.maximum(first_seen, rest_seen) >= _PROVEN)
        return held if np.count_nonzero(held) else None

    def _is_confirmed(self, slot: int) -> bool:
        """Return whether the operator confirms that an endpoint is faster than its siblings."""
        spec = self._table.by_slot.get(slot)
        return spec is not None and spec.labels.get(FAST_LABEL) == "true"


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


def _relative(logs: Floats, known: Mask) -> Floats:
    """Return logarithms over that of the typical sibling, the upper median; 0 if not known."""
    if not np.count_nonzero(known):
        return np.zeros(len(logs))
    usual = np.sort(logs[known])[np.count_nonzero(known) // 2]
    return np.where(known, logs - usual, 0.0)
