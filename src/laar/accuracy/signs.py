"""Weak outcomes: what an answer shows of itself, where nobody judges it.

An answer may end at its limit, call a tool by what is no JSON, or be one that the engine was not
sure of. It shows one sign. With P(sign | right) = r and P(sign | wrong) = w, learned from answers
that were also reported, one that was expected to be right with p is so with p r / q, where
q = p r + (1 - p) w, and is worth p (1 - p) * sum((r - w)^2 / q) of a reported outcome, summed over
the signs that it might have shown: 1 if they never err, 0 if they say nothing.

What all models show alike says nothing of one: the recent mean of p r / q - p is taken off.

Clients choose requests, and so signs. These count as one reporter's (`SIGNS`): a quarter of a
cell's cap, and less where two named reporters disagree with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SIGNS = "(signs)"
"""The reporter that weak outcomes count as."""

PLAIN, CUT, BROKEN_CALL = 0, 1, 2
"""Signs of an answer: nothing, cut at its limit, a call of a tool by what is no JSON."""

_SURENESS = (0.75, 0.85, 0.93)  # mean probabilities of tokens that part answers that show them
_MAX_MODELS = 256  # whose signs are counted; those of others count among all models'

_GUESSES = (
    np.array([[0.86, 0.10, 0.04], [0.965, 0.03, 0.005]]),
    np.array(
        [[0.02, 0.09, 0.03, 0.3, 0.24, 0.18, 0.14], [0.02, 0.03, 0.005, 0.13, 0.2, 0.25, 0.365]]
    ),
)
"""P(sign) of wrong and of right answers, without log-probabilities and with them."""
_GUESS_OUTCOMES = 30.0
_ALL_OUTCOMES = 30.0  # that all models' counts weigh in one model's
_RECENT = 300.0  # answers over which the mean of all fades

_Floats = NDArray[np.float64]


class Sign(NamedTuple):
    """What an answer shows of itself; `sure` if its tokens' log-probabilities were seen."""

    number: int
    sure: bool


class Weak(NamedTuple):
    """A weak outcome, as `OnlineOutcomes.observe` takes it."""

    correct: bool
    weight: float
    offset: float


def sign_of(*, cut: bool, broken_call: bool, logprobs: Sequence[float]) -> Sign:
    """Return the sign of an answer that was read to its end."""
    if broken_call or cut:
        return Sign(BROKEN_CALL if broken_call else CUT, bool(logprobs))
    if not logprobs:
        return Sign(PLAIN, False)
    mean = exp(min(0.0, sum(logprobs) / len(logprobs)))
    return Sign(BROKEN_CALL + 1 + sum(mean >= edge for edge in _SURENESS), True)


class Signs:
    """The reliability of signs, learned from reported outcomes."""

    def __init__(self) -> None:
        self._all = [np.zeros_like(guess) for guess in _GUESSES]
        self._models: dict[str, list[_Floats]] = {}
        self._seen, self._mean = 0.1 * _RECENT, 0.0

    def learn(self, model: str, sign: Sign, *, correct: bool) -> None:
        """Count the sign of an answer that was reported."""
        counts = self._models.get(model)
        if counts is None and len(self._models) < _MAX_MODELS:
            counts = self._models[model] = [np.zeros_like(guess) for guess in _GUESSES]
        for each in (self._all, counts):
            if each is not None:
                each[sign.sure][int(correct), sign.number] += 1.0

    def weak(self, model: str, sign: Sign, expected: float) -> Weak:
        """Return the weak outcome of an answer that was right with P = `expected`."""
        wrong, right = self._rates(model, sign.sure)
        q = expected * right + (1.0 - expected) * wrong
        variance = expected * (1.0 - expected)
        worth = float(variance * np.sum((right - wrong) ** 2 / q))
        moved = float(variance * (right - wrong)[sign.number] / q[sign.number])
        self._seen = min(self._seen + 1.0, _RECENT)
        self._mean += (moved - self._mean) / self._seen
        moved -= self._mean
        weight = min(max(worth, abs(moved), 1e-6), 1.0)
        shown = expected + max(-1.0, min(moved / weight, 1.0))
        return Weak(moved > 0.0, weight, shown - (moved > 0.0))

    def _rates(self, model: str, sure: bool) -> _Floats:
        """Return P(sign) of wrong and of right answers of a model."""
        rates = _GUESSES[sure]
        counts = self._models.get(model)
        for seen, weight in (
            (self._all[sure], _GUESS_OUTCOMES),
            (None if counts is None else counts[sure], _ALL_OUTCOMES),
        ):
            if seen is not None:
                rates = (seen + weight * rates) / (seen.sum(axis=1, keepdims=True) + weight)
        return rates
