"""The learned constants of a model's engines: a line for the first token, and one for the rest.

See `laar.speeds.engines` for the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from laar.accuracy.assessment import (
    CONTEXT_TOKENS,
    MAX_BEND,
    UNMEASURED_SECONDS_PER_TOKEN,
    SpeedPrior,
)
from laar.fleet.endpoints import Floats, Slots
from laar.speeds.lines import FittedLine

ERROR = 0.3
"""Relative error of a prediction."""

_ANSWER_S = 2.0  # seconds per answer until one has been seen: 200 tokens at 10 ms
_LEAST_ANSWER_S = 1e-3
_LEAST_SHARE = 0.1  # a prior with less weight in the mean answer is not replaced
_MOST_TOKENS = 100_000  # per answer; larger reports are not plausible
_PACE_FADING = 2.0  # samples lose 18 % of their weight if their endpoint's pace changes by 10 %
_TOKENIZE_S = 3e-6  # per token, standard deviation of the prior; vLLM takes 2.4e-6
_LEAST_SLOWED = 0.01  # minimum prior of the slowdown by each other answer, as in vLLM

Number = TypeVar("Number", float, Floats)


@dataclass(kw_only=True, eq=False)
class EndpointConstants:
    """The constants of some endpoints, multiplied by their paces where one applies.

    The symbols are those of `laar.speeds.engines`; `cw` is c * w.

    Args:
        of: slots of the endpoints.
        model_id: which model or variant is asked at each, in `judged`; None for their models.
        models: the table's models when they were worked out.
        slots: requests that the engine runs concurrently; infinite if it was not full lately.
        tokens: mean length of the model's answers; 0 if not known.
    """

    of: Slots
    model_id: Slots | None
    models: Sequence[str]
    base_s: Floats
    c: Floats
    e: Floats
    s: Floats
    cw: Floats
    w: Floats
    answer_s: Floats
    b: Floats
    q: Floats
    slots: Floats
    tokens: Floats

    @cached_property
    def ever_full(self) -> bool:
        """Whether any of the engines is full or was lately (`laar.speeds.batches`)."""
        return bool(np.count_nonzero(np.isfinite(self.slots)))


class Sample(NamedTuple):
    """A sample from one answer, as plain values, so that all pickers can learn from it.

    `first` is true for the time to the first token, false for the time after it. `features` are the
    line's inputs. `took_s` is the measured time, `even_s` the time at an endpoint of average pace.
    `weight` is the noise in seconds for a first token, and the sample's weight for an answer.
    """

    first: bool
    features: tuple[float, ...]
    even_s: float
    took_s: float
    weight: float


class Constants(NamedTuple, Generic[Number]):
    """The constants of a model's engines, or of several models as arrays.

    The fields are those of `EndpointConstants`, at an average pace; `b` is in seconds.
    """

    base_s: Number
    c: Number
    s: Number
    cw: Number
    answer_s: Number
    b: Number
    q: Number
    e: Number
    tokens: Number


class Seen(NamedTuple):
    """c(m) as measured while serving: artifact and answers combined, weighted by their errors.

    Args:
        seconds_per_token: c(m).
        error_s_per_token: its standard error.
        samples: number of first tokens behind the estimate.
    """

    seconds_per_token: float
    error_s_per_token: float
    samples: int


class EngineModel:
    """The learned constants of the engines that serve one model.

    Args:
        speed: the prior; learned values are in units of its c(m).
    """

    def __init__(self, speed: SpeedPrior) -> None:
        self.speed = speed
        self.first = FittedLine(
            prior=_first_prior(speed),
            doubt=_first_doubt(speed),
            low=(0.0, 0.005, 0.0, 0.0, 0.0, 0.0),
            high=(60.0, 20.0, 10.0, 20.0, MAX_BEND, 5.0),
        )
        self.rest = FittedLine(
            prior=(1.0, _LEAST_SLOWED), doubt=(0.5, 0.05), low=(0.02, 0.0), high=(20.0, 5.0)
        )  # answer and 2 b, in units of a mean answer
        self.unit_s, self._answers, self._tokens = _ANSWER_S, 1.0, 0.0
        self._guess_s, self._guess_share = _ANSWER_S, 1.0  # prior of `unit_s`, and its weight there
        self._expect_speed()

    def imitate(self, other: EngineModel) -> None:
        """Replace unmeasured priors that still matter with what another model has learned."""
        c, *_, answer_s = self.speed
        is_measured = answer_s is not None or c != UNMEASURED_SECONDS_PER_TOKEN
        if self._guess_share > _LEAST_SHARE and not is_measured:
            if not self.first.seen:
                self.first.expect(other.first.now, _first_doubt(self.speed))
            self._expect_answers(max(other.mean_s, _LEAST_ANSWER_S), 1.0)

    def measured(self, speed: SpeedPrior) -> None:
        """Replace the measured speed; keep what was learned."""
        self._restate(speed.seconds_per_token / self.speed.seconds_per_token)
        self.speed = speed
        self._expect_speed()

    def _expect_speed(self) -> None:
        """Replace the priors with those of `speed`; what was learned from answers stays."""
        self.first.expect(_first_prior(self.speed), _first_doubt(self.speed))
        if (answer_s := self.speed.answer_s) is not None:
            self._expect_answers(max(answer_s, _LEAST_ANSWER_S), 4.0)
        elif not self.rest.seen:
            self._expect_answers(_ANSWER_S, 1.0)

    def _restate(self, factor: float) -> None:
        """Rescale all features but the first: their unit is c(m), which changed by `factor`."""
        if factor != 1.0:
            self.first.restate((1.0, *[factor] * (len(self.first.now) - 1)))

    def _expect_answers(self, answer_s: float, weight: float) -> None:
        """Replace the prior of `unit_s` with one that weighs as much as `weight` answers."""
        if answer_s != self._guess_s:
            learned_s = self._answers * (self.unit_s - self._guess_share * self._guess_s)
            self._answers = max(0.0, self._answers * (1.0 - self._guess_share)) + weight
            self._guess_s, self._guess_share = answer_s, weight / self._answers
            unit_s = max((learned_s + weight * answer_s) / self._answers, _LEAST_ANSWER_S)
            self.rest.work_out()
            self.rest.rescale(unit_s / self.unit_s)
            self.rest.work_out()
            self.unit_s = unit_s

    @property
    def mean_s(self) -> float:
        """Mean duration of the answers seen, in seconds, ignoring the prior."""
        return (self.unit_s - self._guess_share * self._guess_s) / max(
            1.0 - self._guess_share, 1e-9
        )

    def constants(self) -> Constants[float]:
        """Return the learned constants."""
        base_s, c, cs, cw, cq, e = self.first.now
        d0, d1 = self.rest.now
        b, q = 0.5 * (d1 * self.unit_s), cq / (c * CONTEXT_TOKENS)
        return Constants(base_s, c, cs / c, cw, d0 * self.unit_s, b, q, e, self._tokens)

    def seen(self) -> Seen:
        """Return c(m) as learned from first tokens. Thread-safe."""
        unit, first = self.speed.seconds_per_token, self.first
        return Seen(unit * first.now[1], unit * first.error(1), first.seen)

    def work_s(self, plain_s: float, context_tokens: float) -> float:
        """Return c(m)'s estimate for a prompt, in seconds, with the effect of a long context."""
        now = self.first.now  # direct access: this is called twice per request
        return plain_s * (1.0 + now[4] / (now[1] * CONTEXT_TOKENS) * context_tokens)

    @property
    def counts_tokens(self) -> bool:
        """Whether the length of an answer is known."""
        return self._tokens > 0.0

    def length(self, tokens: int, *, usual: bool) -> float:
        """Return an answer's length over the mean, which learns from it if it is `usual`."""
        tokens = min(tokens, _MOST_TOKENS)
        if usual or not self._tokens:
            self._tokens += (tokens - self._tokens) * (0.05 if self._tokens else 1.0)
        return tokens / self._tokens

    def answered(
        self, seconds: float, others: float, weight: float, *, teaches: bool
    ) -> tuple[bool, float]:
        """Learn from an answer; return whether the constants changed, and actual / predicted time.

        Args:
            seconds: time of the answer, adjusted to an endpoint of average pace.
            others: mean number of other requests in flight there.
            weight: weight of the sample.
            teaches: whether to learn from it.
        """
        if not teaches:
            return False, (seconds / self.unit_s + 0.01) / (self.rest.guess((1.0, others)) + 0.01)
        self._answers = min(self._answers + 1.0, 100.0)
        unit_s = self.unit_s + (min(seconds, 20.0 * self.unit_s) - self.unit_s) / self._answers
        unit_s = max(unit_s, _LEAST_ANSWER_S)
        self._guess_share *= 1.0 - 1.0 / self._answers
        self.rest.rescale(unit_s / self.unit_s)
        self.unit_s = unit_s
        # As a first guess, other requests slow answers as much as they slow prompts.
        self.rest.expect((1.0, max(_LEAST_SLOWED, self.first.now[2] / self.first.now[1])))
        features = (1.0, others)
        guess, took = self.rest.guess(features), seconds / unit_s
        changed = self.rest.learn(features, took, 0.01 + ERROR * guess, weight)
        return changed, (took + 0.01) / (guess + 0.01)

    def paces_changed(self, first: float, rest: float) -> None:
        """Discount earlier samples, which were adjusted with the previous paces.

        Args:
            first: mean change in the logarithm of the paces `first`.
            rest: mean change in the logarithm of the paces `rest`.
        """
        if first or rest:
            self.first.fade(math.exp(-_PACE_FADING * first))
            self.rest.fade(math.exp(-_PACE_FADING * rest))

    def state(self) -> dict[str, object]:
        """Return the learned state as plain values."""
        scalars = [self.unit_s, self._answers, self._tokens, self._guess_s, self._guess_share]
        return {
            "first": self.first.state(),
            "rest": self.rest.state(),
            "answers": scalars,
            "seconds_per_token": self.speed.seconds_per_token,
        }

    def restore(self, state: object) -> None:
        """Restore a result of `state`, unless there are samples already; skip invalid parts."""
        if not isinstance(state, dict) or self.rest.seen or self.first.seen:
            return
        scalars = state.get("answers")
        if not (
            isinstance(scalars, list)
            and len(scalars) in (3, 5)  # older versions stored no guess
            and all(type(scalar) in (int, float) and 0.0 <= scalar < 1e6 for scalar in scalars)
            and scalars[0] > 0.0
        ):
            return
        unit = state.get("seconds_per_token")
        if self.first.restore(state.get("first")) and type(unit) is float and 1e-12 < unit < 1e3:
            self._restate(self.speed.seconds_per_token / unit)
        if self.rest.restore(state.get("rest")):
            own = map(float, [*scalars, 0.0, 0.0][:5])
            self.unit_s, self._answers, self._tokens, self._guess_s, self._guess_share = own
        self._expect_speed()


def _first_prior(speed: SpeedPrior) -> tuple[float, ...]:
    """Return the base, c, c * s, c * w, c * q and e of a first token."""
    return speed.start_s, 1.0, 0.0, 1.0, speed.bend, 0.0


def _first_doubt(speed: SpeedPrior) -> tuple[float, ...]:
    return 0.05, speed.error, 0.1, 0.5, 1.0, _TOKENIZE_S / speed.seconds_per_token
