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

Where little was learned the priors stand: c(m) and the base of the artifact, vLLM's way to read
prompts, and answers that a hundred others make twice as long. First tokens that nobody sees (of
answers that are not read) leave the first line to those that are seen; prompts ahead then count by
a clock, and whole answers still teach the second line and the paces. Errors are weighed as shares
of the prediction, those far out no more than in proportion, old ones are forgotten, and each
constant has its bounds: no answer can push one out of its range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laar.core.endpoints import EndpointTable, Floats, Slots
from laar.core.lines import Line

__all__ = ["Began", "Constants", "Engines"]

MEAN_S = 60.0
"""Over which the mean number in flight is taken."""

RATE_S = 30.0
"""Over which the rate of requests, and of prompts to read, is taken."""

MAX_FACTOR = 20.0
"""Devices behind one name differ by less."""

MAX_AHEAD_S = 600.0
MAX_MODELS = 1024

_ANSWER_S = 2.0  # of an answer, until one was seen: 200 tokens at 10 ms
_KNOWN_BASE_S = 0.2  # an artifact's base above this has an answer's decoding in it
_ERROR = 0.3  # of a prediction, as a share of it
_PACE_MEMORY = 60.0  # samples
_PACE_DOUBT = 1.0  # samples that a pace of 1 weighs
_PACE_TIE = 10.0  # samples that the other pace weighs
_UNKNOWN_LENGTH = 0.05  # what an answer of unknown length tells, against one of known length
_FULL_SEEN = 3  # readings in a row before an engine's batch is taken to be full
_LEAST_SLOTS = 4.0
_PACES_AT_ONCE = 16  # endpoints for each sample between two workings-out of a fleet's paces


@dataclass(slots=True, kw_only=True)
class Constants:
    """The constants of some endpoints; arrays over them, the pace already in where it belongs.

    `base_s`, `read` (real seconds for one by c(m)), `slowed` (s), `waits` (w), `answer_s` and
    `beside_s` (d0 and d1) as in the module's text; `slots` is how many requests an engine runs at
    once, infinite where that was never seen.
    """

    base_s: Floats
    read: Floats
    slowed: Floats
    waits: Floats
    answer_s: Floats
    beside_s: Floats
    slots: Floats


@dataclass(slots=True)
class Began:
    """What a request found when it was sent: the features that its end is explained by."""

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
    is_read: bool = False
    first_at: float = math.nan


class _Model:
    """The two lines of a model."""

    def __init__(self, base_s: float) -> None:
        known = base_s > _KNOWN_BASE_S
        self.first = Line(
            prior=(0.0 if known else base_s, 1.0, 0.0, 1.0),  # b, c, c * s, w
            doubt=(0.05, 0.5, 0.1, 0.5),
            low=(0.0, 0.05, 0.0, 0.0),
            high=(60.0, 20.0, 10.0, 2.0),
        )
        self.rest = Line(
            prior=(1.0, 0.01), doubt=(0.5, 0.05), low=(0.02, 0.0), high=(20.0, 5.0)
        )  # d0, d1, in units of a mean answer
        self.unit_s = base_s if known else _ANSWER_S
        self.answers = 4.0 if known else 1.0  # that the unit's prior weighs
        self.answer_tokens = 0.0

    def constants(self) -> tuple[float, ...]:
        b, c, cs, w = self.first.now.tolist()
        d0, d1 = self.rest.now.tolist()
        return b, c, cs / c, w, d0 * self.unit_s, d1 * self.unit_s

    def answered(self, seconds: float) -> None:
        """Keeps the unit near a mean answer."""
        self.answers = min(self.answers + 1.0, 100.0)
        seconds = min(seconds, 20.0 * self.unit_s)
        unit_s = max(1e-3, self.unit_s + (seconds - self.unit_s) / self.answers)
        self.rest.rescale(unit_s / self.unit_s)
        self.unit_s = unit_s


_COLUMNS = (
    "at",
    "mean",
    "ahead_s",
    "free_at",
    "flight_s",
    "done_s",
    "load",
    "loaded_at",
    "read_at",
    "slots",
    "most",
    "full",
    "first_logs",
    "first_seen",
    "rest_logs",
    "rest_seen",
)


class Engines:
    """The constants of all endpoints, and the counts that they are learned by.

    Args:
        table: the endpoints.
    """

    at: Floats
    mean: Floats
    ahead_s: Floats
    free_at: Floats
    flight_s: Floats
    done_s: Floats
    load: Floats
    loaded_at: Floats
    read_at: Floats
    slots: Floats
    most: Floats
    full: Floats
    first_logs: Floats
    first_seen: Floats
    rest_logs: Floats
    rest_seen: Floats

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._models: dict[str, _Model] = {}
        self._size = 0
        self._readings = -1
        self._learned = 0
        self._rate = self._load = 0.0
        self._rate_at = -math.inf
        self._by_model: tuple[object, Floats] | None = None
        self._grow()

    # -- asked at a decision -------------------------------------------------------------------

    def constants(self, slots: Slots, model_id: Slots, base_s: Floats) -> Constants:
        """The constants of some endpoints; `base_s` is what the artifact says of each."""
        self._look()
        models = self._table.models
        if self._by_model is None or self._by_model[0] is not models:
            table = np.empty((6, len(models)))
            for at, name in enumerate(models):
                model = self._models.get(name)
                if model is None:
                    mine = np.flatnonzero(model_id == at)
                    model = _Model(float(base_s[mine[0]]) if len(mine) else 0.0)
                table[:, at] = model.constants()
            self._by_model = models, table
        b, c, s, w, d0, d1 = self._by_model[1][:, model_id]
        first, rest = self._first_pace[slots], self._rest_pace[slots]
        return Constants(
            base_s=first * b,
            read=first * c,
            slowed=s,
            waits=w * first * c,
            answer_s=rest * d0,
            beside_s=rest * d1,
            slots=self._room[slots],
        )

    def ahead(self, slots: Slots, now: float) -> Floats:
        """Seconds by c(m) of prompts that are not read yet."""
        ahead: Floats = self.ahead_s[slots] + np.maximum(self.free_at[slots] - now, 0.0)
        return ahead

    def mean_in_flight(self, slots: Slots, now: float) -> Floats:
        """Requests in flight, on average of late."""
        in_flight = self._table.in_flight[slots]
        faded = np.exp(np.minimum(self.at[slots] - now, 0.0) / MEAN_S)
        mean: Floats = in_flight + (self.mean[slots] - in_flight) * faded
        return mean

    def loads(self, slots: Slots, now: float) -> Floats:
        """Seconds of prompts (by c(m)) that each was sent a second, of late."""
        faded: Floats = np.exp(np.minimum(self.loaded_at[slots] - now, 0.0) / RATE_S)
        return self.load[slots] * faded

    def arrivals(self, now: float) -> tuple[float, float]:
        """Requests a second, and seconds of prompts to read (by c(m)) a second."""
        fade = math.exp(max(-700.0, min(0.0, self._rate_at - now) / RATE_S))
        return self._rate * fade, self._load * fade

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
        """
        self._grow()
        now = now if math.isfinite(now) else float(self.at[slot])
        self._advance(slot, now)
        name = self._name(slot)
        model = self._model(name, base_s)
        one = Began(
            *(slot, name, work_s, float(self.ahead(np.array([slot]), now)[0]), others),
            *(rtt_s, shown, teaches, float(self.flight_s[slot]), float(self.done_s[slot])),
        )
        if shown:
            self.ahead_s[slot] += work_s
        else:
            # By the clock, in seconds by c(m): it runs as fast as the engine reads.
            pace = float(model.first.now[1] * self._first_pace[slot])
            self.free_at[slot] = min(
                max(float(self.free_at[slot]), now) + work_s * pace, now + MAX_AHEAD_S
            )
        fade = math.exp(max(-700.0, min(0.0, float(self.loaded_at[slot]) - now) / RATE_S))
        self.load[slot] = float(self.load[slot]) * fade + work_s / RATE_S
        self.loaded_at[slot] = now
        rate, load = self.arrivals(now)
        self._rate, self._load = rate + 1.0 / RATE_S, load + work_s / RATE_S
        self._rate_at = now
        return one

    def answering(self, one: Began, now: float) -> None:
        """The first byte of an answer was seen: what was to be read is read."""
        slot = one.slot
        self._advance(slot, now)
        self._is_read(one)
        one.first_at = now
        one.flight_s, one.done_s = float(self.flight_s[slot]), float(self.done_s[slot])

    def gone(self, one: Began, now: float) -> None:
        """A request ended, or went elsewhere, and teaches nothing; before the table knows."""
        self._advance(one.slot, now)
        self._is_read(one)

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
        if not one.teaches:
            return
        slot, model = one.slot, self._model(one.model)
        features = np.array([1.0, one.work_s, one.work_s * one.others, one.ahead_s])
        if work_s is not None:
            features[1:3] *= work_s / max(one.work_s, 1e-9) if one.work_s > 1e-9 else 0.0
        guess = float(features @ model.first.now)
        pace = float(self._first_pace[slot])
        full = one.others >= self._room[slot]
        if ttft_s is not None and not full:  # a full engine's wait is for a place
            took = max(ttft_s - one.rtt_s, 1e-4)
            noise = 0.02 + _ERROR * one.rtt_s
            if model.first.learn(features, took / pace, noise + _ERROR * guess):
                self._by_model = None
            sure = guess / (guess + 2.0 * noise)
            self._pace(slot, "first", (took + noise) / (guess + noise), sure * sure)
        self._learn_rest(one, now, ttft_s, latency_s, answer_tokens, pace * guess + one.rtt_s)

    def drop(self, slot: int) -> None:
        """Forgets a slot: its endpoint left."""
        if slot < self._size:
            for name in _COLUMNS:
                getattr(self, name)[slot] = 0.0
            self._first_pace[slot] = self._rest_pace[slot] = 1.0
            self._room[slot] = math.inf

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
        others = max(0.0, (float(self.flight_s[slot]) - one.flight_s) / max(span_s, 1e-6) - 1.0)
        if seen:  # prompts that were read meanwhile held the answer up
            _, c, _, w = model.first.now.tolist()
            held = w * c * float(self._first_pace[slot]) * (float(self.done_s[slot]) - one.done_s)
            took = max(took - held, 0.1 * took)
        weight = _UNKNOWN_LENGTH
        if answer_tokens:
            weight = 1.0
            mean = model.answer_tokens
            mean = model.answer_tokens = mean + (answer_tokens - mean) * (0.05 if mean else 1.0)
            took *= mean / answer_tokens
        took /= float(self._rest_pace[slot])
        model.answered(took)
        took /= model.unit_s
        _, c, cs, _ = model.first.now.tolist()
        model.rest.expect((1.0, max(0.01, cs / c)))  # what slows prompts may slow answers as well
        guess = float(model.rest.now @ (1.0, others))
        if model.rest.learn(np.array([1.0, others]), took, 0.01 + _ERROR * guess, weight):
            self._by_model = None
        ratio = (took * float(self._rest_pace[slot]) + 0.01) / (guess + 0.01)
        self._pace(slot, "rest", ratio, weight)

    def _pace(self, slot: int, which: str, ratio: float, weight: float) -> None:
        """An endpoint's own pace: its samples against what its model takes."""
        logs, seen = getattr(self, f"{which}_logs"), getattr(self, f"{which}_seen")
        keep = 1.0 - weight / _PACE_MEMORY
        most = math.log(MAX_FACTOR)
        log = min(most, max(-most, math.log(max(ratio, 1e-9))))
        logs[slot] = logs[slot] * keep + weight * log
        seen[slot] = seen[slot] * keep + weight
        self._learned += 1
        same = np.flatnonzero(self._table.model_id == self._table.model_id[slot])
        if self._learned * _PACES_AT_ONCE >= len(same):
            self._learned = 0
            self._set_paces(same)

    def _set_paces(self, same: Slots) -> None:
        """Works out the paces of a model's endpoints."""
        most = math.log(MAX_FACTOR)
        weights = self.first_seen[same] + self.rest_seen[same]
        total = float(weights.sum())
        both = (self.first_logs[same] + self.rest_logs[same]) / (weights + _PACE_DOUBT)
        for own, count, pace in (
            (self.first_logs[same], self.first_seen[same], self._first_pace),
            (self.rest_logs[same], self.rest_seen[same], self._rest_pace),
        ):
            logs = (own + _PACE_TIE * both) / (count + _PACE_TIE)
            # Against the others: what all share is in the model's lines.
            mean = float(logs @ weights) / total if total > 0.0 else 0.0
            logs = np.where(weights > 0.0, logs - mean, 0.0)
            pace[same] = np.exp(np.clip(logs, -most, most))

    # -- counts --------------------------------------------------------------------------------

    def _advance(self, slot: int, now: float) -> None:
        if not math.isfinite(now):
            return
        passed_s = now - float(self.at[slot])
        if passed_s > 0.0:
            in_flight = float(self._table.in_flight[slot])
            self.flight_s[slot] += in_flight * passed_s
            fade = math.exp(-passed_s / MEAN_S)
            self.mean[slot] = in_flight + (float(self.mean[slot]) - in_flight) * fade
        self.at[slot] = now  # also when time was set back

    def _is_read(self, one: Began) -> None:
        if one.is_read:
            return
        one.is_read = True
        self.done_s[one.slot] += one.work_s
        if one.shown:
            left = float(self.ahead_s[one.slot]) - one.work_s
            self.ahead_s[one.slot] = left if left > 1e-9 else 0.0

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
            elif table.waiting[slot] > 0.0:
                self.full[slot] = self.full[slot] + 1.0 if running == self.most[slot] else 0.0
                if self.full[slot] >= _FULL_SEEN:
                    self._room[slot] = running

    def _grow(self) -> None:
        size, before = self._table.capacity, self._size
        if size == before:
            return
        for name in _COLUMNS:
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

    def _name(self, slot: int) -> str:
        at = int(self._table.model_id[slot])
        return self._table.models[at] if at >= 0 else ""

    def _model(self, name: str, base_s: float = 0.0) -> _Model:
        model = self._models.get(name)
        if model is None:
            if len(self._models) >= MAX_MODELS:
                self._models.clear()  # names come from the sources of endpoints, yet have a cap
            model = self._models[name] = _Model(base_s)
            self._by_model = None
        return model
