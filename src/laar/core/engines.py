"""What engines are like, learned from what became of requests.

One model of an engine, in closed form. A request with `x` seconds of prompt to read (uncached
tokens at the model's c(m)) that finds `n` others there, and `W` seconds of prompts ahead of it,
takes, beside the round trip,

    to the first token   f_p * (b + c * x * (1 + s * n) + w * W)
    from there on        f_d * (d0 + d1 * n)

`w` is how much of the prompts ahead it waits for: 1 where they are read one after the other, 0
where all at once. `s` is how much each other request slows its prompt; `d0` and `d1` are how long
an answer takes alone, and how much longer for each other request that is there on average. These
belong to a model and are shared by its endpoints; `f_p` and `f_d` are each endpoint's own pace
against the others of its model, the one a first guess for the other. An engine such as vLLM has
`w` = 1 and `s` = 0; one that runs all side by side the reverse.

A pace differs from 1 by no more than what its samples show beyond their own scatter, and what an
endpoint showed long ago counts little: equal endpoints cost the same and share the load.

Where little was learned the priors stand: c(m) and the base of the artifact, vLLM's way to read
prompts, and answers that a hundred others make twice as long. First tokens that nobody sees (of
answers that are not read) leave the first line to those that are seen; prompts ahead then count by
a clock, and whole answers still teach the second line and the paces. Errors are weighed as shares
of the prediction, those far out no more than in proportion, old ones are forgotten, and each
constant has its bounds: no answer can push one out of its range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from laar.core.endpoints import EndpointTable, Floats, Slots
from laar.core.engine_model import ERROR, EngineModel

__all__ = ["FEW_CAME", "Began", "Constants", "Engines", "Sample", "seconds_ahead"]

MEAN_S = 60.0
"""Over which the mean number in flight is taken."""

RATE_S = 30.0
"""Over which the rate of requests, and of prompts to read, is taken."""

FEW_CAME = 10.0
"""Requests that the mean of all weighs in an endpoint's load."""

MAX_FACTOR = 20.0
"""Devices behind one name differ by less."""

MAX_AHEAD_S = 600.0
MAX_MODELS = 1024

_PACE_MEMORY = 60.0  # samples
_PACE_DOUBT = 1.0  # samples that a pace of 1 weighs
_PACE_TIE = 10.0  # samples that the other pace weighs
_PACE_SURE = 2.0  # standard errors within which a pace counts as its model's
_PACE_MEMORY_S = 120.0
_UNKNOWN_LENGTH = 0.05  # what an answer of unknown length tells, against one of known length
_FULL_SEEN = 3  # readings in a row before an engine's batch is taken to be full
_LEAST_SLOTS = 4.0
_PACES_TOGETHER = 8  # samples between two workings-out of a model's paces
_MOST_FADED = 50.0  # times its span, until a fading sum is taken anew


@dataclass(kw_only=True)
class Constants:
    """The constants of some endpoints; arrays over them, the pace already in where it belongs.

    `base_s`, `read` and `waits` (real seconds for one by c(m), of this prompt and of those ahead),
    `slowed` (s), `turns` (w), `answer_s` and `beside_s` (d0 and d1) as in the module's text;
    `slots` is how many requests an engine runs at once, infinite where that was never seen
    (`ever_full`: it was, of one of them).
    """

    base_s: Floats
    read: Floats
    slowed: Floats
    waits: Floats
    turns: Floats
    answer_s: Floats
    beside_s: Floats
    slots: Floats
    ever_full: bool

    @property
    def columns(self) -> tuple[Floats, ...]:
        """All of the arrays, in their order."""
        return (
            *(self.base_s, self.read, self.slowed, self.waits),
            *(self.turns, self.answer_s, self.beside_s, self.slots),
        )

    @cached_property
    def rows(self) -> list[tuple[float, ...]]:
        """The same endpoint by endpoint, as plain numbers."""
        return list(zip(*[column.tolist() for column in self.columns], strict=True))


@dataclass(slots=True)
class Began:
    """What a request found when it was sent: the features that its end is explained by.

    `reads` is false where another endpoint reads its prompt.
    """

    slot: int
    model: str
    work_s: float
    ahead_s: float
    others: float
    rtt_s: float
    shown: bool
    teaches: bool
    flight_s: float
    done_s: float
    reads: bool = True
    is_read: bool = False
    first_at: float = math.nan


class Sample(NamedTuple):
    """What one answer taught, apart from where: it may be learned by several pickers.

    `first` tells the way to the first token from the rest. `features` are those of the line.
    `even_s` is what it would have taken at an endpoint of the usual pace, `took_s` what it took;
    `weight` is the noise in seconds of a first token, the weight of the sample of an answer.
    """

    first: bool
    features: tuple[float, ...]
    even_s: float
    took_s: float
    weight: float


_ASKED = ("ahead_s", "since", "free_at", "load", "came")
_OTHER = (
    "at",
    "mean",
    "flight_s",
    "done_s",
    "read_at",
    "most",
    "full",
    "paced_at",
    "own_ahead_s",
    "sent",
    "sent_s",
    "hidden_s",
    "own_read_s",
    "others_ahead_s",
)

_PACED = (
    *("first_logs", "first_seen", "first_scatter"),
    *("rest_logs", "rest_seen", "rest_scatter"),
)


class Engines:
    """The constants of all endpoints, and the counts that they are learned by.

    Args:
        table: the endpoints.
    """

    at: Floats
    mean: Floats
    ahead_s: Floats
    since: Floats
    free_at: Floats
    flight_s: Floats
    done_s: Floats
    load: Floats
    came: Floats
    read_at: Floats
    most: Floats
    full: Floats
    first_logs: Floats
    first_seen: Floats
    first_scatter: Floats
    rest_logs: Floats
    rest_seen: Floats
    rest_scatter: Floats
    paced_at: Floats
    own_ahead_s: Floats
    sent: Floats
    sent_s: Floats
    hidden_s: Floats
    own_read_s: Floats
    others_ahead_s: Floats

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._models: dict[str, EngineModel] = {}
        self._size = 0
        self._readings = -1
        self._learned = 0
        self._rate = self._load = 0.0
        self._rate_at = -math.inf
        self._kept: tuple[object, object, Constants] | None = None
        self._load_from = 0.0
        self.on_sample: Callable[[int, Sample], None] | None = None
        """Gets what an answer taught about a slot, before it is learned."""
        self._grow()

    # -- asked at a decision -------------------------------------------------------------------

    def constants(self, slots: Slots, base_s: Floats) -> Constants:
        """The constants of some endpoints; `base_s` is what the artifact says of each."""
        self._look()
        kept = self._kept
        if kept is not None and kept[0] is slots and kept[1] is self._table.models:
            return kept[2]
        models, model_id = self._table.models, self._table.model_id[slots]
        rows = []
        for at, name in enumerate(models):
            model = self._models.get(name)
            if model is None:
                mine = (model_id == at).nonzero()[0]
                rows.append(_unknown(float(base_s[mine[0]]) if len(mine) else 0.0))
            else:
                rows.append(model.constants())
        b, c, s, wc, d0, d1 = np.array(rows).T[:, model_id]
        first, rest = self._first_pace[slots], self._rest_pace[slots]
        room = self._room[slots]
        made = Constants(
            base_s=first * b,
            read=first * c,
            slowed=s,
            waits=first * wc,
            turns=wc / c,
            answer_s=rest * d0,
            beside_s=rest * d1,
            slots=room,
            ever_full=bool(np.isfinite(room).any()),
        )
        self._kept = slots, models, made
        return made

    def asked(self, slots: Slots, now: float) -> tuple[Floats, float]:
        """What some endpoints were asked for, and the mean of their loads.

        Rows are `ahead_s`, `since` and `free_at`, and of late `load`, seconds of prompts (by c(m))
        that each is sent a second, and `came`, the requests that say so (`FEW_CAME`).
        """
        asked: Floats = self._asked.take(slots, axis=1)
        recent = asked[-2:]
        recent *= _exp((self._load_from - now) / RATE_S)
        return asked, float(np.add.reduce(asked[-2])) / len(slots)

    def mean_in_flight(self, slots: Slots, now: float) -> Floats:
        """Requests in flight, on average of late."""
        in_flight = self._table.in_flight[slots]
        faded = np.exp(np.minimum(self.at[slots] - now, 0.0) / MEAN_S)
        mean: Floats = in_flight + (self.mean[slots] - in_flight) * faded
        return mean

    def arrivals(self, now: float) -> tuple[float, float]:
        """Requests a second, and seconds of prompts to read (by c(m)) a second."""
        fade = _exp((self._rate_at - now) / RATE_S)
        return self._rate * fade, self._load * fade

    def visits(self, slots: Slots, now: float) -> float:
        """Requests a second that an endpoint of these was sent, or prompts to read, on average."""
        faded = _exp((self._load_from - now) / RATE_S)
        return float(self.came[slots].sum()) * faded / (RATE_S * max(1, len(slots)))

    # -- told ----------------------------------------------------------------------------------

    def began(
        self,
        slot: int,
        now: float,
        *,
        work_s: float,
        others: float,
        rtt_s: float,
        base_s: float,
        shown: bool,
        teaches: bool = True,
        reads: bool = True,
        visits: bool = False,
    ) -> Began:
        """A request is sent; told before the table counts it.

        Args:
            slot: where to.
            now: the moment.
            work_s: of its prompt, by c(m).
            others: in flight there.
            rtt_s: the way there and back.
            base_s: what the artifact says of the model, for a model that is new.
            shown: whether the first byte of its answer will be seen.
            teaches: whether its end will say something: not if it was somewhere else before.
            reads: whether its prompt is read there.
            visits: its prompt alone is there, and it is answered elsewhere.
        """
        self._grow()
        now = self._advance(slot, now)
        name = self._name(slot)
        model = self._model(name, base_s)
        pace = max(model.read * self._first_pace.item(slot), 1e-3)
        ahead_s = self.ahead_s.item(slot)
        if not ahead_s:
            self.since[slot] = now
        begun_s = max(0.0, now - self.since.item(slot))
        ahead_s = max(0.0, ahead_s - begun_s / pace)
        ahead_s += max(0.0, self.free_at.item(slot) - now)
        one = Began(
            *(slot, name, work_s, ahead_s, others),
            *(rtt_s, shown, teaches, self.flight_s.item(slot), self.done_s.item(slot)),
            reads=reads,
        )
        if shown:
            self.ahead_s[slot] += work_s
            self.own_ahead_s[slot] += work_s
        else:
            self._hide(slot, work_s, pace, now)
            self.hidden_s[slot] += work_s
        self.sent[slot] += 1.0
        self.sent_s[slot] += work_s
        self._arrived(slot, 1.0, work_s, now, counted=not visits)
        return one

    def answering(self, one: Began, now: float) -> None:
        """The first byte of an answer was seen: what was to be read is read."""
        slot = one.slot
        now = self._advance(slot, now)
        self._is_read(one, now)
        one.first_at = now
        one.flight_s, one.done_s = self.flight_s.item(slot), self.done_s.item(slot)

    def gone(self, one: Began, now: float) -> None:
        """A request ended, or went elsewhere, and teaches nothing; before the table knows."""
        self._is_read(one, self._advance(one.slot, now))

    def ended(
        self,
        one: Began,
        now: float,
        *,
        ttft_s: float | None,
        latency_s: float,
        answer_tokens: int | None,
        work_s: float | None = None,
    ) -> None:
        """A request ended well; told before the table takes it out.

        Args:
            one: from `began`.
            now: the moment.
            ttft_s: to the first byte of the answer, if that was seen.
            latency_s: to its end.
            answer_tokens: its length, where the answer was read.
            work_s: what was to be read by the engine's own count, where it said.
        """
        self.gone(one, now)
        if not one.teaches or not math.isfinite(latency_s):
            return
        if ttft_s is not None and not math.isfinite(ttft_s):
            ttft_s = None
        if work_s is not None and not math.isfinite(work_s):
            work_s = None
        slot, model = one.slot, self._model(one.model)
        work = one.work_s if work_s is None else work_s
        features = (1.0, work, work * one.others, one.ahead_s)
        guess = model.first.guess(features)
        pace = self._first_pace.item(slot)
        # A full engine's wait is for a place: it says nothing of prompts.
        if ttft_s is not None and one.reads and one.others < self._room[slot]:
            took = max(ttft_s - one.rtt_s, 1e-4)
            noise = 0.02 + ERROR * one.rtt_s
            sample = Sample(True, features, took / pace, took, noise)
            if self.on_sample is not None:
                self.on_sample(slot, sample)
            self._learn_first(slot, model, sample)
        self._learn_rest(one, now, ttft_s, latency_s, answer_tokens, pace * guess + one.rtt_s)

    def prefilled(self, one: Began, took_s: float) -> None:
        """A prompt was read for an answer elsewhere; told when that has ended well.

        Args:
            one: from `began`.
            took_s: to the first byte of the answer, without what came after the prompt was read.
        """
        if not math.isfinite(took_s):
            return
        slot, model = one.slot, self._model(one.model)
        pace = self._first_pace.item(slot)
        took = max(took_s - model.constants()[0], 1e-4)
        features = (1.0, one.work_s, one.work_s * one.others, one.ahead_s)
        sample = Sample(True, features, took / pace, took, 0.02)
        if self.on_sample is not None:
            self.on_sample(slot, sample)
        self._learn_first(slot, model, sample)

    def drop(self, slot: int) -> None:
        """Forgets a slot: its endpoint left."""
        if slot < self._size:
            for name in (*_ASKED, *_PACED, *_OTHER):
                getattr(self, name)[slot] = 0.0
            self._first_pace[slot] = self._rest_pace[slot] = 1.0
            self._room[slot] = math.inf

    # -- several pickers -----------------------------------------------------------------------

    def elsewhere(
        self,
        slot: int,
        now: float,
        *,
        ahead_s: float,
        sent: float = 0.0,
        sent_s: float = 0.0,
        hidden_s: float = 0.0,
        read_s: float = 0.0,
    ) -> None:
        """Takes what other pickers sent to a slot; told before the table counts it.

        Args:
            slot: where to.
            now: the moment.
            ahead_s: of their prompts that are not read yet, all together, where that is seen.
            sent: requests since the last call.
            sent_s: of the prompts of these.
            hidden_s: the part of it whose first byte nobody sees.
            read_s: of prompts that were read since.
        """
        self._grow()
        now = self._advance(slot, now)
        more = ahead_s - float(self.others_ahead_s[slot])
        self.others_ahead_s[slot] = ahead_s
        if more < 0.0 or not self.ahead_s[slot]:
            self.since[slot] = now
        left = float(self.ahead_s[slot]) + more
        self.ahead_s[slot] = left if left > 1e-9 else 0.0
        self.done_s[slot] += read_s
        if hidden_s > 0.0:
            model = self._model(self._name(slot))
            pace = max(model.read * float(self._first_pace[slot]), 1e-3)
            self._hide(slot, hidden_s, pace, now)
        if sent > 0.0:
            self._arrived(slot, sent, sent_s, now)

    def heard(self, slot: int, sample: Sample) -> None:
        """Learns from an answer that another picker saw."""
        self._grow()
        model = self._model(self._name(slot))
        if sample.first:
            self._learn_first(slot, model, sample)
        else:
            self._learn_answer(slot, model, sample)

    def state(self) -> dict[str, object]:
        """What is learned of models and, by address, of endpoints' paces; as plain values."""
        paces = {
            self._table.spec(slot).address: [float(getattr(self, name)[slot]) for name in _PACED]
            for slot in self._table.active.tolist()
            if slot < self._size and self.first_seen[slot] + self.rest_seen[slot] > 0.0
        }
        return {"models": {n: m.state() for n, m in self._models.items()}, "paces": paces}

    def restore(self, state: object) -> None:
        """Takes up what `state` gave, for models of which nothing is known yet."""
        if not isinstance(state, dict):
            return
        self._grow()
        models, paces = state.get("models"), state.get("paces")
        served = {spec.models[0] for spec in self._table.specs()}
        for name in served.difference(self._models):
            if isinstance(models, dict) and name in models:
                self._model(name).restore(models[name])
        for address, known in paces.items() if isinstance(paces, dict) else ():
            slot = self._table.slot(address) if isinstance(address, str) else -1
            if slot < 0 or not isinstance(known, list) or len(known) != len(_PACED):
                continue
            if not all(type(each) in (int, float) and abs(each) < 1e4 for each in known):
                continue
            for name, value in zip(_PACED, known, strict=True):
                getattr(self, name)[slot] = value
            self.paced_at[slot] = math.inf  # as of the first request
        for model_id in range(len(self._table.models)):
            self._set_paces(np.flatnonzero(self._table.model_id == model_id))
        self._kept = None

    def _hide(self, slot: int, work_s: float, pace: float, now: float) -> None:
        # By the clock, in seconds by c(m): it runs as fast as the engine reads.
        free_at = max(self.free_at.item(slot), now) + work_s * pace
        self.free_at[slot] = min(free_at, now + MAX_AHEAD_S)

    def _arrived(
        self, slot: int, requests: float, work_s: float, now: float, *, counted: bool = True
    ) -> None:
        # Kept as of one moment for all: then it fades by one factor.
        if not 0.0 <= now - self._load_from < _MOST_FADED * RATE_S:
            faded = _exp((self._load_from - now) / RATE_S)
            self.load *= faded
            self.came *= faded
            self._load_from = now
        scale = math.exp((now - self._load_from) / RATE_S)
        self.load[slot] += work_s / RATE_S * scale
        self.came[slot] += requests * scale
        rate, load = self.arrivals(now)
        self._rate = rate + requests / RATE_S if counted else rate
        self._load = load + work_s / RATE_S
        self._rate_at = now

    # -- learning ------------------------------------------------------------------------------

    def _learn_rest(
        self,
        one: Began,
        now: float,
        ttft_s: float | None,
        latency_s: float,
        answer_tokens: int | None,
        guessed_s: float,
    ) -> None:
        slot, model = one.slot, self._model(one.model)
        seen = ttft_s is not None and not math.isnan(one.first_at)
        took = latency_s - (guessed_s if ttft_s is None else ttft_s)
        if took <= 0.0:
            return
        span_s = now - one.first_at if seen else latency_s
        others = max(0.0, (self.flight_s.item(slot) - one.flight_s) / max(span_s, 1e-6) - 1.0)
        pace = self._rest_pace.item(slot)
        if seen:  # prompts that were read meanwhile held the answer up
            waited = model.waits * self._first_pace.item(slot)
            took = max(took - waited * (self.done_s.item(slot) - one.done_s), 0.1 * took)
        weight = _UNKNOWN_LENGTH
        if answer_tokens:
            weight, took = 1.0, model.alike(took, answer_tokens)
        sample = Sample(False, (others,), took / pace, took, weight)
        if self.on_sample is not None:
            self.on_sample(slot, sample)
        self._learn_answer(slot, model, sample)

    def _learn_first(self, slot: int, model: EngineModel, sample: Sample) -> None:
        features, noise = sample.features, sample.weight
        guess = max(0.0, model.first.guess(features))
        if model.first.learn(features, sample.even_s, noise + ERROR * guess):
            self._kept = None
        sure = guess / (guess + 2.0 * noise)
        ratio = (sample.took_s + noise) / (guess + noise)
        self._pace(slot, (self.first_logs, self.first_seen, self.first_scatter), ratio, sure * sure)

    def _learn_answer(self, slot: int, model: EngineModel, sample: Sample) -> None:
        even_s, weight = max(sample.even_s, 1e-9), sample.weight
        changed, ratio = model.answered(even_s, sample.features[0], weight)
        if changed:
            self._kept = None
        ratio = ratio * sample.took_s / even_s
        self._pace(slot, (self.rest_logs, self.rest_seen, self.rest_scatter), ratio, weight)

    def _pace(
        self, slot: int, columns: tuple[Floats, Floats, Floats], ratio: float, weight: float
    ) -> None:
        """An endpoint's own pace: its samples against what its model takes."""
        logs, seen, scatter = columns
        keep = 1.0 - weight / _PACE_MEMORY
        most = math.log(MAX_FACTOR)
        log = min(most, max(-most, math.log(max(ratio, 1e-9))))
        before = seen.item(slot)
        if before > 0.0:
            miss = weight * (log - logs.item(slot) / before)
            scatter[slot] = scatter.item(slot) * keep * keep + miss * miss
        logs[slot] = logs.item(slot) * keep + weight * log
        seen[slot] = before * keep + weight
        self._learned += 1
        if self._learned >= _PACES_TOGETHER:
            same = np.flatnonzero(self._table.model_id == self._table.model_id[slot])
            self._learned = 0
            self._kept = None
            self._set_paces(same)

    def _set_paces(self, same: Slots) -> None:
        """Works out the paces of a model's endpoints."""
        most = math.log(MAX_FACTOR)
        paced = self._paced.take(same, axis=1)
        if self._rate_at > -math.inf:
            passed_s = np.maximum(self._rate_at - self.paced_at[same], 0.0)
            self.paced_at[same] = self._rate_at
            paced *= np.exp(-passed_s / _PACE_MEMORY_S)
            self._paced[:, same] = paced
        first_logs, first_seen, first_scatter, rest_logs, rest_seen, rest_scatter = paced
        weights = first_seen + rest_seen
        total = float(np.add.reduce(weights))
        both = (first_logs + rest_logs) / (weights + _PACE_DOUBT)
        scatter = float(np.add.reduce(first_scatter) + np.add.reduce(rest_scatter))
        doubt = _PACE_SURE**2 * scatter / max(total, 1e-9)
        for own, count, pace in (
            (first_logs, first_seen, self._first_pace),
            (rest_logs, rest_seen, self._rest_pace),
        ):
            logs = (own + _PACE_TIE * both) / (count + _PACE_TIE)
            # Against the others: what all share is in the model's lines.
            mean = float(logs @ weights) / total if total > 0.0 else 0.0
            logs -= mean
            # Breiman's garotte: nothing where the samples' scatter explains it, all of it far off.
            seen = np.minimum(count + _PACE_TIE, weights)
            far = logs * logs * seen
            shown = np.maximum(0.0, 1.0 - doubt / np.maximum(far, 1e-12))
            pace[same] = np.exp(np.minimum(np.maximum(logs * shown, -most), most))

    # -- counts --------------------------------------------------------------------------------

    def _advance(self, slot: int, now: float) -> float:
        """Brings counts up to a moment; returns it, or the last one where it is no number."""
        if not math.isfinite(now):
            return self.at.item(slot)
        passed_s = now - self.at.item(slot)
        if passed_s > 0.0:
            in_flight = self._table.in_flight.item(slot)
            self.flight_s[slot] += in_flight * passed_s
            fade = math.exp(-passed_s / MEAN_S)
            self.mean[slot] = in_flight + (self.mean.item(slot) - in_flight) * fade
        self.at[slot] = now  # also when time was set back
        return now

    def _is_read(self, one: Began, now: float) -> None:
        if one.is_read:
            return
        one.is_read = True
        slot, work_s = one.slot, one.work_s
        self.done_s[slot] += work_s
        self.own_read_s[slot] += work_s
        if one.shown:
            own = self.own_ahead_s.item(slot) - work_s
            self.own_ahead_s[slot] = own if own > 1e-9 else 0.0
            left = self.ahead_s.item(slot) - work_s
            self.ahead_s[slot] = left if left > 1e-9 else 0.0
            self.since[slot] = now  # whoever is next is being read

    def _look(self) -> None:
        """Takes in new readings: how many requests an engine runs at once.

        It is full when requests wait while as many run as ever did, reading after reading. Where
        they wait for prompts ahead of them, the number that runs goes up and down.
        """
        table = self._table
        if table.readings == self._readings:
            return
        self._grow()
        self._readings = table.readings
        fresh = np.flatnonzero(table.read_at > self.read_at)  # never read is NaN, not above
        self.read_at[fresh] = table.read_at[fresh]
        for slot in fresh[table.running[fresh] >= _LEAST_SLOTS].tolist():
            running = float(table.running[slot])
            if running > self.most[slot]:
                self.most[slot], self.full[slot], self._room[slot] = running, 0.0, math.inf
                self._kept = None
            elif table.waiting[slot] > 0.0:
                self.full[slot] = self.full[slot] + 1.0 if running == self.most[slot] else 0.0
                if self.full[slot] >= _FULL_SEEN:
                    self._room[slot] = running
                    self._kept = None

    def _grow(self) -> None:
        """Follows the table's size."""
        size, before = self._table.capacity, self._size
        if size == before:
            return
        asked, paced = np.zeros((len(_ASKED), size)), np.zeros((len(_PACED), size))
        if before:
            asked[:, :before], paced[:, :before] = self._asked, self._paced
        self._asked: Floats = asked
        self._paced: Floats = paced
        for name, row in zip((*_ASKED, *_PACED), (*asked, *paced), strict=True):
            setattr(self, name, row)
        for name in _OTHER:
            grown = np.zeros(size)
            if before:
                grown[:before] = getattr(self, name)
            setattr(self, name, grown)
        ones, room = np.ones(size), np.full(size, math.inf)
        if before:
            ones[:before], room[:before] = self._first_pace, self._room
        self._first_pace: Floats = ones
        rest = np.ones(size)
        if before:
            rest[:before] = self._rest_pace
        self._rest_pace: Floats = rest
        self._room: Floats = room
        self._size = size
        self._kept = None

    def _name(self, slot: int) -> str:
        at = int(self._table.model_id[slot])
        return self._table.models[at] if at >= 0 else ""

    def _model(self, name: str, base_s: float = 0.0) -> EngineModel:
        model = self._models.get(name)
        if model is None:
            if len(self._models) >= MAX_MODELS:
                self._models.clear()  # names come from the sources of endpoints, yet have a cap
            model = self._models[name] = EngineModel(base_s)
            self._kept = None
        return model


@lru_cache(maxsize=MAX_MODELS)
def _unknown(base_s: float) -> tuple[float, ...]:
    """The constants of a model that nothing was learned of."""
    return EngineModel(base_s).constants()


def seconds_ahead(
    most: Callable[[Any, Any], Any], ahead_s: Any, since: Any, free_at: Any, now: Any, read: Any
) -> Any:
    """Seconds by c(m) of prompts that are not read yet, of one endpoint or of several.

    Args:
        most: the larger of two, `max` or `np.maximum`.
        ahead_s: as in `Engines.asked`, as are the next two.
        since: as above.
        free_at: as above.
        now: the moment, or one for each endpoint.
        read: of the constants.
    """
    return most(ahead_s - most(now - since, 0.0) / read, 0.0) + most(free_at - now, 0.0)


def _exp(exponent: float) -> float:
    """What has faded: never above 1, whatever clocks do."""
    return math.exp(max(-700.0, min(0.0, exponent)))
