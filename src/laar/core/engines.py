"""What engines are like, learned from what became of requests.

One model of an engine, in closed form. A request with `x` seconds of prompt to read (uncached
tokens at the model's c(m)) that finds `n` others there, `W` seconds of prompts ahead of it, takes

    ttft   = f_p * (b + c * x * (1 + s * n) + w * W)                 beside the round trip
    decode = f_d * (d0 + d1 * n)

`w` is how much of the work ahead it waits for (1 where prompts are read one after the other, 0
where all at once), `s` how much each other one slows its prompt, `d0` and `d1` how long an answer
takes alone and how much longer for each other request there. These are of the model and shared by
its endpoints; `f_p` and `f_d` are each endpoint's own: twice as long on a slower device.

Both lines are least squares that forget, weighed by how large the prediction was (errors are
shares of it) and cut off where one is far out. Where nothing was learned yet the artifact's c(m)
and base stand, and the prior of an engine such as vLLM. Nothing here is unbounded, and no answer
can push a constant out of its range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laar.core.endpoints import EndpointTable, Floats

__all__ = ["Engines", "Began"]

TAU_S = 60.0
"""Over which the mean number in flight is taken."""

RATE_TAU_S = 30.0

_FORGET = 0.998
_FAR_OUT = 3.0
_MIN_FACTOR, _MAX_FACTOR = 1 / 20, 20.0
GD = 0.05
_TIE = 20.0
_SHRINK = 4.0  # samples that an endpoint's factor of 1 is worth
_FACTOR_MEMORY = 60.0


class _Line:
    """Least squares that forget, with a prior; a handful of coefficients, each in its range."""

    def __init__(self, prior: list[float], doubt: list[float], low: list[float], high: list[float]) -> None:
        self.now = np.array(prior)
        self._a0 = np.diag([1.0 / d**2 for d in doubt])
        self._b0 = self._a0 @ self.now
        self._a = np.zeros_like(self._a0)
        self._b = np.zeros_like(self._b0)
        self._low, self._high = np.array(low), np.array(high)
        self.seen = 0

    def learn(self, features: Floats, value: float, scale: float, weight: float = 1.0) -> None:
        """Takes a sample whose error is about `scale`; solves anew."""
        miss = abs(value - float(features @ self.now)) / scale
        if self.seen > 20 and miss > _FAR_OUT:
            weight *= _FAR_OUT / miss
        weight /= scale * scale
        self._a = _FORGET * self._a + weight * np.outer(features, features)
        self._b = _FORGET * self._b + (weight * value) * features
        self.seen += 1
        if self.seen < 50 or self.seen % 8 == 0:
            self.solve()

    def solve(self) -> None:
        if True:
            solved = np.linalg.solve(self._a + self._a0, self._b + self._b0)
            self.now = np.clip(solved, self._low, self._high)

    def rescale(self, factor: float) -> None:
        """The unit of the values has become larger by this factor."""
        self._b /= factor


class _Model:
    def __init__(self, base_s: float) -> None:
        # b, c, c * s, w
        self.first = _Line([0.02, 1.0, 0.0, 1.0], [0.05, 0.5, 0.1, 0.5], [0.0, 0.1, 0.0, 0.0], [10.0, 10.0, 3.0, 2.0])
        # d0, d1, in units of a mean answer
        self.rest = _Line([1.0, 0.01], [0.5, GD], [0.05, 0.0], [5.0, 2.0])
        self.unit_s = max(base_s, 0.3)
        self.units = 0
        self.tokens = 0.0

    def expect(self) -> None:
        """What slows prompts is the first guess for what slows answers."""
        c, cs = self.first.now[1:3].tolist()
        line = self.rest
        line._b0 = line._a0 @ np.array([1.0, max(0.01, cs / c)])

    def answer(self, seconds: float) -> None:
        """Keeps the unit near a mean answer."""
        self.units += 1
        share = max(0.01, 1.0 / (self.units + 3))
        new = self.unit_s + share * (min(seconds, 20.0 * self.unit_s) - self.unit_s)
        self.rest.rescale(new / self.unit_s)
        self.unit_s = new


@dataclass(slots=True)
class Began:
    """What was found when a request was sent: its features."""

    slot: int
    work_s: float
    wait_s: float
    others: float
    flight_s: float
    read_s: float
    rtt_s: float
    base_s: float
    shown: bool = True
    read: bool = False
    first_read_s: float = -1.0
    first_flight_s: float = -1.0


class Engines:
    """The constants of all endpoints, and the clocks that they are learned by.

    Args:
        table: the endpoints.
    """

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._models: dict[str, _Model] = {}
        self._size = 0
        self.rate = 0.0  # requests a second
        self.load = 0.0  # seconds of prompts a second
        self._rate_at = -math.inf
        self._readings = -1
        self._read_at = np.zeros(table.capacity)
        self._grow()

    _ZEROS = ("slots", "full_n", "most_n", "free_at", "ahead_s", "mean_n", "flight_s", "read_s", "fp_sum", "fp_n", "fd_sum", "fd_n")

    def _grow(self) -> None:
        if self._size == self._table.capacity:
            return
        size = self._table.capacity
        for name in (*self._ZEROS, "at"):
            grown = np.zeros(size)
            if self._size:
                grown[: self._size] = getattr(self, name)
            setattr(self, name, grown)
        self._fp = np.ones(size)
        self._fd = np.ones(size)
        self._read_at = np.concatenate([self._read_at, np.zeros(size - len(self._read_at))])
        self._size = size
        for slot in ():
            self._refactor(slot)

    def drop(self, slot: int) -> None:
        if slot < self._size:
            for name in (*self._ZEROS, "at"):
                getattr(self, name)[slot] = 0.0
            self._refactor(slot)

    # -- asked in a decision -------------------------------------------------------------------

    def constants(self, models, model_id, base_s):
        """By candidate: b, c, s, w, d0, d1."""
        out = np.empty((6, len(models)))
        for i, name in enumerate(models):
            m = self._models.get(name)
            if m is None:
                m = _Model(0.0)
            b, c, cs, w = m.first.now.tolist()
            d0, d1 = m.rest.now.tolist()
            out[:, i] = b, c, cs / c, w, d0 * m.unit_s, d1 * m.unit_s
        return out[:, model_id]

    def wait_s(self, slots, now):
        """Seconds of prompts ahead, by c(m): of those that will be seen to answer, and a clock."""
        return self.ahead_s[slots] + np.maximum(self.free_at[slots] - now, 0.0)

    def mean_in_flight(self, slots, now):
        n = self._table.in_flight[slots]
        return n + (self.mean_n[slots] - n) * np.exp((self.at[slots] - now) / TAU_S)

    def room(self, slots):
        s = self.slots[slots]
        return np.where(s > 0, s, 1e9)

    def look(self) -> None:
        """Takes in the readings: an engine that has requests wait while as many run as ever did is full."""
        table = self._table
        if table.readings == self._readings:
            return
        self._grow()
        self._readings = table.readings
        for slot in np.flatnonzero(table.read_at[: self._size] > self._read_at[: self._size]).tolist() if self._read_at is not None else []:
            running, waiting = float(table.running[slot]), float(table.waiting[slot])
            if running > self.most_n[slot]:
                self.most_n[slot], self.full_n[slot] = running, 0
                if running > self.slots[slot]: self.slots[slot] = 0.0
            elif running == self.most_n[slot] and waiting > 0 and running >= 4:
                self.full_n[slot] += 1
                if self.full_n[slot] >= 3: self.slots[slot] = running
            elif waiting > 0:
                self.full_n[slot] = 0
        self._read_at = np.nan_to_num(table.read_at.copy())

    # -- told ----------------------------------------------------------------------------------

    def _advance(self, slot: int, now: float) -> None:
        passed = now - self.at[slot]
        if passed > 0.0:
            n = float(self._table.in_flight[slot])
            self.flight_s[slot] += n * passed
            self.mean_n[slot] = n + (self.mean_n[slot] - n) * math.exp(-passed / TAU_S)
        self.at[slot] = now

    def began(self, slot: int, work_s: float, others: float, now: float, rtt_s: float, base_s: float, shown: bool = True) -> Began:
        """A request is sent; before it is counted in the table."""
        self._grow()
        self._advance(slot, now)
        wait_s = float(self.wait_s(slot, now))
        one = Began(slot, work_s, wait_s, others, float(self.flight_s[slot]), float(self.read_s[slot]), rtt_s, base_s, shown)
        model = self._model(slot, base_s)
        if shown:
            self.ahead_s[slot] += work_s
        else:
            pace = float(model.first.now[1] * self._fp[slot])
            self.free_at[slot] = min(max(float(self.free_at[slot]), now) + work_s * pace, now + 600.0)
        fade = math.exp(min(0.0, self._rate_at - now) / RATE_TAU_S)
        self.rate = self.rate * fade + 1.0 / RATE_TAU_S
        self.load = self.load * fade + work_s / RATE_TAU_S
        self._rate_at = now
        return one

    def answering(self, one: Began, now: float) -> None:
        """Its first byte was seen: what it had to read is read."""
        slot = one.slot
        self._advance(slot, now)
        self.read_s[slot] += one.work_s
        one.first_read_s = float(self.read_s[slot])
        one.first_flight_s = float(self.flight_s[slot])
        self._is_read(one)

    def _is_read(self, one: Began) -> None:
        if one.shown and not one.read:
            left = float(self.ahead_s[one.slot]) - one.work_s
            self.ahead_s[one.slot] = left if left > 1e-9 else 0.0
        one.read = True

    def ended(self, one: Began, now: float, *, ok: bool, ttft_s: float | None, latency_s: float, tokens: int | None, read_share: float | None) -> None:
        """It is over; before it is taken out of the table."""
        slot = one.slot
        self._advance(slot, now)
        seen_first = one.first_read_s >= 0.0
        if not seen_first:
            self.read_s[slot] += one.work_s
        self._is_read(one)
        if not ok:
            return
        model = self._model(slot, one.base_s)
        b, c, cs, w = model.first.now.tolist()
        fp, fd = float(self._fp[slot]), float(self._fd[slot])
        x = one.work_s if read_share is None else one.work_s * read_share
        features = np.array([1.0, x, x * one.others, one.wait_s])
        guess = float(features @ model.first.now)
        room = float(self.slots[slot])
        if ttft_s is not None and not (room and one.others >= room):
            y = max(ttft_s - one.rtt_s, 1e-4)
            model.first.learn(features, y / fp, 0.02 + 0.3 * guess)
            self._factor(slot, "fp", math.log((y + 0.01) / (guess + 0.01)))
        first = fp * guess + one.rtt_s if ttft_s is None else ttft_s
        z = latency_s - first
        if z <= 0.0:
            return
        if seen_first:
            n = (float(self.flight_s[slot]) - one.first_flight_s) / max(z, 1e-6) - 1.0
            between = float(self.read_s[slot]) - one.first_read_s
        else:
            n = (float(self.flight_s[slot]) - one.flight_s) / max(latency_s, 1e-6) - 1.0
            between = 0.0
        n = max(n, 0.0)
        z = max(z - w * c * fp * between, 0.1 * z)
        weight = 0.02
        if tokens:
            model.tokens += 0.05 * (tokens - model.tokens) if model.tokens else tokens
            z *= max(model.tokens, 1.0) / tokens
            weight = 1.0
        z /= fd
        model.answer(z)
        z /= model.unit_s
        guess = float(model.rest.now[0] + model.rest.now[1] * n)
        model.expect()
        model.rest.learn(np.array([1.0, n]), z, 0.01 + 0.3 * guess, weight)
        self._factor(slot, "fd", math.log((z * fd + 0.01) / (guess + 0.01)), weight)

    def _model(self, slot: int, base_s: float) -> _Model:
        name = self._table.models[int(self._table.model_id[slot])] if self._table.model_id[slot] >= 0 else ""
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = _Model(base_s)
        return model

    def _factor(self, slot: int, which: str, log_ratio: float, weight: float = 1.0) -> None:
        """An endpoint's own pace: its samples against what its model takes."""
        log_ratio = max(-3.0, min(3.0, log_ratio))
        total, count = getattr(self, which + "_sum"), getattr(self, which + "_n")
        keep = 1.0 - 1.0 / _FACTOR_MEMORY
        total[slot] = total[slot] * keep + log_ratio * weight
        count[slot] = count[slot] * keep + weight
        self._refactor(slot)

    def _refactor(self, slot: int) -> None:
        same = self._table.model_id == self._table.model_id[slot]
        for total, count, factor in (
            (self.fp_sum, self.fp_n, self._fp),
            (self.fd_sum, self.fd_n, self._fd),
        ):
            logs = total[same] / (count[same] + _SHRINK * (count[same] > 0) + (count[same] <= 0))
            if total is self.fd_sum:  # what is known of prompts is the first guess for answers
                logs = (total[same] + _TIE * np.log(self._fp[same])) / (count[same] + _TIE)
            weights = count[same]
            mean = float((logs * weights).sum() / max(weights.sum(), 1e-9))
            factor[same] = np.exp(np.where(weights > 0, logs - mean, 0.0))
