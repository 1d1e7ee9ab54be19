"""A fair share, and no more, for an endpoint that nothing explains to be so fast.

An endpoint that answers uselessly is fast, too. So one that is faster than its model's other
endpoints make plausible, by any clock, is `quick`; while nothing explains that
(`laar.health.explained`) it is `held`: it teaches its model nothing, and gets a fair share of the
requests for its model. So do all quick ones where answers are not texts: nobody can tell what those
are worth. The label `laar.dev/fast` confirms a pace.

The usual pace is that of the endpoints which are no faster than their model was before. So if most
endpoints of a model turn useless alike, the others judge them. Without such a past, or if all have
changed, it is the median.

Where answers are not texts, an endpoint that ends at once could get all requests before its
siblings have answered any. So those get some, until half of them have shown what is usual.

What explains a pace is answers, and an endpoint beside a cheaper one may get no requests. So those
whose answers are missing, held or beside a held one, get a request now and then, until there are
enough to compare.

Comparing all endpoints of a large fleet would take longer than a decision. So they are compared
once for a number of answers (`_FOR_EACH`), a few at a time, with siblings that answered most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Annotated

import numpy as np
from msgspec import Meta

from laar.core.candidates import Group
from laar.core.decision import Decision
from laar.core.interfaces import View
from laar.core.plugin import Answering, Core, Part, Plugin
from laar.faults import Fault
from laar.fleet.endpoints import Floats, Mask, Slots
from laar.health.endpoint import Member
from laar.latest import Latest
from laar.plugins.trying import WAITS_LITTLE
from laar.request import TEXTS, Request
from laar.untrusted import Text, valid

FAST_LABEL = "laar.dev/fast"
"""Label of an endpoint that may well be faster than the others with its model: ``true``. Its speed
is then believed whatever its answers look like."""

_IMPLAUSIBLE = math.log(1.5)  # an endpoint that much faster than the usual one is quick
_AT_ONCE = math.log(3.0)  # and one whose answers, of known lengths, end that much earlier
_STILL = 0.7  # how much of that keeps an endpoint quick
_SURE = 3.0  # least standard errors that chance explains
_SCATTER = 0.67  # standard deviation of the log of an answer's seconds, mostly by its length
_LEAST_S = 0.005  # shorter times differ by the jitter of networks
_ENDS = 40.0  # effective number of answers in the means
_FEW = 2.0  # minimum number of answers for a comparison with siblings
_KNOWN = 0.3  # minimum weight of an endpoint's answers, which fades, to compare its pace
_PROVEN = 10.0  # answers after which an endpoint's pace is known
_TOGETHER = 4  # while an endpoint is quick, every fourth answer updates its model's
_MOST_CREDIT = 2.0  # requests that a quick endpoint may be behind its fair share
_COMPARED = 12.0  # answers of each endpoint after which no more are asked for, twice if believed
_WAITS_ON = 16.0  # decisions for which those wait that stand beside one that is believed
_FOLLOWS = 0.1  # how much of a change of the usual pace is taken over
_MOST_MODELS = 3 * 1024
_FOR_EACH = 32  # endpoints of a model for each answer after which they are compared again
_AT_A_TIME, _SIBLINGS = 8, 32  # quick endpoints explained at a time, and siblings of each

_Log = Annotated[float, Meta(gt=-1e4, lt=1e4)]
_Count = Annotated[float, Meta(ge=0, lt=1e9)]


class FairShares(Plugin):
    """Bounds what speed earns."""

    name = "share"

    def __init__(self) -> None:
        self.quick: dict[int, float] = {}
        """The slots that are faster than their siblings make plausible, without the operator's
        word, and the logarithm of their paces over those."""
        self.held: set[int] = set()
        """Those of them whose paces nothing explains."""
        self._missing: dict[int, float] = {}
        """The slots whose answers are needed to explain the pace of a quick one, or to refute it,
        and for how many decisions each waits."""
        self._unheard: set[int] = set()
        """The slots with too few answers to say what is usual, while others have many."""
        self._credit: Floats = np.zeros(0)
        """By slot: requests by which a quick one is behind its fair share."""
        self._ends: dict[int, tuple[float, float, float]] = {}
        """Mean log of the answers' seconds, their number, and the number with a known length."""
        self._usual: Latest[tuple[str, int], float] = Latest(_MOST_MODELS)
        """The usual logarithm, by model and clock."""
        self._told: dict[int, str] = {}
        self._ended = Counter[int]()  # answers since a model's endpoints were compared

    def join(self, core: Core) -> None:
        """Keep the core."""
        self._core = core

    # -- requests ------------------------------------------------------------------------------

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Take part while an endpoint is quick, or may be where answers are not texts."""
        self.learn(now)
        is_unheard = self._unheard and group.generates is False
        return Part() if self.quick or is_unheard else None

    def keep(self, request: Request, part: Part, slots: Slots, now: float) -> Mask | None:
        """Prefer an endpoint whose answers are missing, or those that have not had their share."""
        is_text = request.api in TEXTS
        is_special = request.tried or request.objective or request.ttft_objective_s is not None
        missing = self._missing if is_text else dict.fromkeys(self._unheard, WAITS_LITTLE)
        if missing and not is_special:
            table = self._core.table
            waited, waits = table.decisions - table.chosen[slots], np.full(table.capacity, math.inf)
            waits[[*missing]] = [*missing.values()]
            turn = (waited >= waits[slots]) & (table.in_flight[slots] == 0.0)
            if np.count_nonzero(turn):
                first: Mask = slots == slots[np.where(turn, waited, -1.0).argmax()]
                return first
        held = np.array([*(self.held if is_text else self.quick)], np.intp)
        over = held[self._credit[held] < 0.0]
        return ~np.isin(slots, over) if len(over) else None

    def select(self, view: View, part: Part, at: int) -> Part | None:
        """Count each request."""
        return part

    def reserve(self, decision: Decision, now: float) -> None:
        """Count a request towards the fair shares of the quick slots."""
        if len(self._core.engines.ends) >= (1 if self.held and self._missing else _TOGETHER):
            self.learn(now)
        table, slot = self._core.table, decision.flight.slot
        model_id, active = table.model_id, table.active
        if self.quick:
            same = max(int(np.count_nonzero(model_id[active] == model_id[slot])), 1)
            quick = np.array([*self.quick], np.intp)
            # Another model's requests count as well: it may be chosen only as nobody gets on here.
            of = np.where(model_id[quick] == model_id[slot], same, max(len(active), 1))
            self._credit[quick] = np.minimum(self._credit[quick] + 1.0 / of, _MOST_CREDIT)
        self.move(decision, now)

    def move(self, decision: Decision, now: float) -> None:
        """Count a request at the endpoint that serves it."""
        slot = decision.flight.slot
        if slot in self.quick:
            self._credit[slot] = max(self._credit[slot] - 1.0, -1.0)

    # -- endpoints -----------------------------------------------------------------------------

    def learn(self, now: float) -> None:
        """Learn how soon the latest answers ended, and whether their lengths are known."""
        ends, of = self._core.engines.ends, self._core.table.model_id
        while ends:
            slot, seconds, tokens = ends.popleft()
            mean, seen, counted = self._ends.get(slot, (0.0, 0.0, 0.0))
            seen = min(seen + 1.0, _ENDS)
            mean += (math.log(max(seconds, _LEAST_S)) - mean) / seen
            self._ends[slot] = mean, seen, counted + bool(tokens)
            self._ended[of.item(slot)] += 1
        for model_id in self._ended.keys() - {-1}:  # an endpoint without one is leaving
            endpoints = np.count_nonzero(of[self._core.table.active] == model_id)
            if 0 < endpoints <= self._ended[model_id] * _FOR_EACH:
                del self._ended[model_id]
                self._look(model_id, now)

    def leave(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        ends = self._core.engines.ends
        left = [end for end in ends if end[0] != slot]
        ends.clear()
        ends.extend(left)
        self._ends.pop(slot, None)
        self._missing.pop(slot, None)
        self._unheard.discard(slot)
        self._forget(slot)

    def save(self) -> object:
        """Return how soon answers ended, what is usual, and which endpoints are quick, or held."""
        key_of = self._core.table.address  # some may be leaving
        ends = [(key_of(slot), *known) for slot, known in self._ends.items()]
        quick = [(key_of(slot), log, slot in self.held) for slot, log in self.quick.items()]
        return [ends, [(*of, log) for of, log in self._usual.items()], quick]

    def restore(self, saved: object) -> None:
        """Restore a result of `save`."""
        ends, usual, quick = saved if isinstance(saved, list) and len(saved) == 3 else ([], [], [])
        for key, *known in valid(ends, tuple[Text, _Log, _Count, _Count]):
            if (slot := self._core.table.slot(key)) >= 0:
                self._ends[slot] = (*known,)
        for model, at, log in islice(valid(usual, tuple[Text, int, _Log]), _MOST_MODELS):
            self._usual[model, at] = log
        for key, log, held in valid(quick, tuple[Text, _Log, bool]):
            if (slot := self._core.table.slot(key)) >= 0:
                self._add(slot, log)
                self.held |= {slot} if held else set()
        self._bound()

    def problems(self) -> Iterable[tuple[Fault, str, str]]:
        """Name the held endpoints that have answered often enough to tell."""
        table = self._core.table
        for slot in self._core.engines.untaught & table.by_slot.keys():
            self._told.setdefault(  # the number changes with each answer
                slot,
                f"is {math.exp(-self.quick[slot]):.0f} times as fast as its siblings; until its "
                "clients' answers explain that, it gets a fair share; label "
                f'{FAST_LABEL}: "true" confirms it',
            )
            yield Fault.FAST, table.spec(slot).key, self._told[slot]

    def _add(self, slot: int, pace: float) -> None:
        if slot >= len(self._credit):
            self._credit = np.pad(self._credit, (0, self._core.table.capacity - len(self._credit)))
        self._credit[slot], self.quick[slot] = 0.0, pace

    def _forget(self, slot: int) -> None:
        self.quick.pop(slot, None)
        self._told.pop(slot, None)
        self.held.discard(slot)

    def _look(self, model_id: int, now: float) -> None:
        """Find the quick and the held endpoints of a model."""
        core, was_idle = self._core, not (self.quick or self._unheard)
        active = core.table.active
        same = active[core.table.model_id[active] == model_id]
        slots = same.tolist()
        paces, sure = self._paces(core.table.models[model_id], same)
        for slot, pace, least in zip(slots, paces.tolist(), sure.tolist(), strict=True):
            usual = -_IMPLAUSIBLE * (_STILL if slot in self.quick else 1.0)
            if least >= usual or self._is_confirmed(slot):
                self._forget(slot)
            elif slot in self.quick:
                self.quick[slot] = pace
            else:
                self._add(slot, pace)
                self.held.add(slot)  # until it is explained
            self._missing.pop(slot, None)
        self._explain([slot for slot in slots if slot in self.quick], now)
        answers = [self._ends.get(slot, (0.0, 0.0))[1] for slot in slots]
        unheard = {slot for slot, seen in zip(slots, answers, strict=True) if seen < _FEW}
        self._unheard.difference_update(slots)
        if 2 * len(unheard) >= len(slots) and max(answers) >= _PROVEN:
            self._unheard |= unheard
        if was_idle == bool(self.quick or self._unheard):
            core.candidates.forget()
        self._bound()

    def _bound(self) -> None:
        # Too few answers explain nothing: until there are more, only the share is bounded.
        known = ((slot, self._ends.get(slot, (0.0, 0.0))[1]) for slot in self.held)
        self._core.engines.untaught = {slot for slot, seen in known if seen >= _PROVEN}

    def _paces(self, model: str, same: Slots) -> tuple[Floats, Floats]:
        """Return the logarithms of endpoints' paces over the usual one, by the fastest clock.

        The second result is what chance, which explains more of fewer answers, leaves of them.
        """
        ends = (self._ends.get(slot, (0.0, 0.0, 0.0)) for slot in same.tolist())
        means, seen, counted = np.array([*ends]).T
        paces = self._relative(means, seen >= _FEW, (model, 0))
        # So many that chance makes any of them quick in at most a tenth of comparisons.
        errors = max(_SURE, math.sqrt(2.0 * math.log(10.0 * len(same))))
        sure = paces + errors * _SCATTER / np.sqrt(np.maximum(seen, 1.0))
        sure += np.where(counted >= _FEW, _AT_ONCE - _IMPLAUSIBLE, 0.0)
        for at, (logs, weight, scatter) in enumerate(self._core.engines.paces.clocks(same), 1):
            pace = self._relative(logs, weight >= _KNOWN, (model, at))
            least = pace + errors * scatter / np.sqrt(np.maximum(weight, 1.0))
            paces = np.where(least < sure, pace, paces)
            sure = np.minimum(sure, least)
        return paces, sure

    def _relative(self, logs: Floats, known: Mask, of: tuple[str, int]) -> Floats:
        """Return logarithms by a clock over the usual one, which is kept; 0 if not known."""
        values = np.sort(logs[known])
        if not len(values):
            return np.zeros(len(logs))
        before = self._usual.get(of, math.nan)
        ours = values[values > before - _IMPLAUSIBLE]  # none if nothing is known
        now = float(ours[len(ours) // 2]) if len(ours) else math.inf
        if (now > before + _IMPLAUSIBLE and 2 * len(ours) <= len(values)) or not len(ours):
            before = now = float(values[len(values) // 2])  # nobody is as before
        if 2 * len(values) > len(logs):
            self._usual[of] = before + _FOLLOWS * (now - before)
        return np.where(known, logs - now, 0.0)

    def _explain(self, quick: list[int], now: float) -> None:
        """Hold quick slots unless answers explain their pace, and note whose answers are missing.

        They are those of one model. Of many, those wait that were compared last.
        """
        health = self._core.health
        members = [m for slot in quick if (m := health.records.endpoints.get(slot)) is not None]
        if len(members) > _AT_A_TIME:
            members = nsmallest(_AT_A_TIME, members, key=lambda each: each.explained.asked_at)
        if not members or not health.settings.enabled:
            self.held.difference_update(quick)
            return
        siblings = members[0].family.members.values()
        calm = [e for e in siblings if e.slot not in self.quick and not e.breaker.is_out]
        if len(calm) > _SIBLINGS:
            calm = nlargest(_SIBLINGS, calm, key=_seen)
        for known in members:
            self._explain_one(known, calm, now)

    def _explain_one(self, known: Member, calm: list[Member], now: float) -> None:
        """Compare a quick endpoint with siblings that are not."""
        slot, health = known.slot, self._core.health
        for endpoint in (known, *calm):
            endpoint.to_read = max(endpoint.to_read, 1)
        answers = [endpoint.explained.answers for endpoint in calm]
        repeats = health.questions.repeats(known, calm, now)
        most, waits = _COMPARED, WAITS_LITTLE
        if known.explained.by_answers(self.quick[slot], answers, now) and repeats:
            most, waits = 2.0 * most, _WAITS_ON
            self.held.discard(slot)
        else:
            self.held.add(slot)
        by_seen = sorted(calm, key=_seen, reverse=True)
        compared = (known, *by_seen[: (len(calm) + 1) // 2])
        if any(map(_seen, compared)):  # else there are no texts
            missing = (each.slot for each in compared if _seen(each) < most)
            self._missing |= dict.fromkeys(missing, waits)
            if slot in self._missing:  # its own teach its pace, too
                self._missing[slot] = WAITS_LITTLE

    def _is_confirmed(self, slot: int) -> bool:
        """Return whether the operator confirms that an endpoint is faster than its siblings."""
        spec = self._core.table.by_slot.get(slot)
        return spec is not None and spec.labels.get(FAST_LABEL) == "true"


def _seen(endpoint: Member) -> float:
    return sum(seen for seen, _, _ in endpoint.explained.answers.sizes.values())
