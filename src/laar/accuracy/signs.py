"""Weak outcomes: signs of how good an answer was, used if no client reports on it.

One sign is in the answer: it ends at its limit, calls a tool with invalid JSON, repeats the
previous answer's call, or has low token probabilities. Another is the conversation's next turn: a
client that repeats its question immediately was not satisfied. With r = P(sign | right) and
w = P(sign | wrong), learned from reported answers, an answer expected to be right with probability
p is now right with probability p r / q, where q = p r + (1 - p) w. It weighs as much as
p (1 - p) * sum((r - w)^2 / q) reported outcomes, summed over the signs that it might have shown:
1 if signs never err, 0 if they carry no information.

The recent mean of p r / q - p is subtracted, since signs that all models show distinguish none.

Clients can influence signs by their choice of requests. So all signs together count as one
reporter, with at most half of a cell's cap, and weigh less if two named reporters disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

PLAIN, CUT, BROKEN_CALL = 0, 1, 2
"""Signs of an answer: none, cut off at its limit, a repeated tool call or one with invalid JSON."""

FORM, SURE, TURN = 0, 1, 2
"""Where a sign was seen: in an answer, in an answer with log-probabilities, in the next turn."""

_SHORT_TOKENS = 256  # client limits below this are meant to cut answers short
_SURENESS = (0.75, 0.85, 0.93)  # class boundaries of mean token probability, where available
_MAX_MODELS = 256  # models with separate counts; the others are only in the total

_GUESSES = (
    np.array([[0.86, 0.10, 0.04], [0.965, 0.03, 0.005]]),
    np.array(
        [[0.02, 0.09, 0.03, 0.3, 0.24, 0.18, 0.14], [0.02, 0.03, 0.005, 0.13, 0.2, 0.25, 0.365]]
    ),
    np.array([[0.85, 0.15], [0.96, 0.04]]),
)
"""Initial P(sign) of wrong and of right answers, by where the sign is seen."""
_PRIOR_OUTCOMES = 30.0  # weight of `_GUESSES` in the total, and of the total in a model's counts
_ALL = ""
_RECENT = 300.0  # number of answers over which the mean shift is averaged

_Floats = NDArray[np.float64]


class Sign(NamedTuple):
    """A sign of an answer, where it was seen, and a hash of the answer's tool calls."""

    number: int
    seen_in: int
    calls: int = 0


def sign_of(choice: Mapping[str, Any], max_tokens: int | None) -> Sign | None:
    """Return the sign of an answer with this choice; None if the client's limit cut it short."""
    cut = choice.get("finish_reason") == "length"
    if cut and max_tokens is not None and max_tokens < _SHORT_TOKENS:
        return None
    seen = [token.get("logprob") for token in _objects(choice.get("logprobs"), "content")]
    logprobs = [float(logprob) for logprob in seen if isinstance(logprob, int | float)]
    calls = [call.get("function") for call in _objects(choice.get("message"), "tool_calls")]
    seen_in, said = SURE if logprobs else FORM, hash(repr(calls)) if calls else 0
    if any(map(_is_broken, calls)):
        return Sign(BROKEN_CALL, seen_in, said)
    if cut or not logprobs:
        return Sign(CUT if cut else PLAIN, seen_in, said)
    mean = exp(min(0.0, sum(logprobs) / len(logprobs)))
    return Sign(BROKEN_CALL + 1 + sum(mean >= edge for edge in _SURENESS), SURE, said)


def _objects(parent: object, name: str) -> list[dict[str, Any]]:
    found = parent.get(name) if isinstance(parent, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _is_broken(function: object) -> bool:
    """Return whether a tool is called with arguments that are not valid JSON."""
    arguments = function.get("arguments") if isinstance(function, dict) else None
    try:
        orjson.loads(arguments if isinstance(arguments, str) and arguments else "{}")
    except orjson.JSONDecodeError:
        return True
    return False


class Signs:
    """Learns the reliability of signs from reported outcomes."""

    def __init__(self) -> None:
        self._counts: dict[str, list[_Floats]] = {}  # by model; the empty name is all models
        self._seen, self._mean = [0.1 * _RECENT] * len(_GUESSES), [0.0] * len(_GUESSES)

    def of_turn(self, *, again: bool) -> Sign:
        """Return the sign of a next turn that repeats the question (`again`) or goes on."""
        return Sign(int(again), TURN)

    def after(self, sign: Sign, before: Sign | None) -> Sign:
        """Return an answer's sign, given the previous one; treat a repeated call as broken."""
        repeats = before is not None and sign.calls and sign.calls == before.calls
        return sign._replace(number=BROKEN_CALL) if repeats else sign

    def learn(self, model: str, sign: Sign, *, correct: bool) -> None:
        """Count the sign of an answer with a reported outcome."""
        known = model in self._counts or len(self._counts) < _MAX_MODELS
        for name in (_ALL, model) if known else (_ALL,):
            counts = self._counts.setdefault(name, [np.zeros_like(guess) for guess in _GUESSES])
            counts[sign.seen_in][int(correct), sign.number] += 1.0

    def weak(self, model: str, sign: Sign, expected: float) -> tuple[bool, float, float]:
        """Return the weak outcome of an answer expected to be right with P = `expected`.

        The result is (correct, weight, offset), as `OnlineOutcomes.observe` expects them.
        """
        at = sign.seen_in
        wrong, right = self._rates(model, at)
        q = expected * right + (1.0 - expected) * wrong
        variance = expected * (1.0 - expected)
        moved = float(variance * (right - wrong)[sign.number] / q[sign.number])
        self._seen[at] = min(self._seen[at] + 1.0, _RECENT)
        self._mean[at] += (moved - self._mean[at]) / self._seen[at]
        moved -= self._mean[at]
        worth = float(variance * np.sum((right - wrong) ** 2 / q))
        weight = min(max(worth, abs(moved), 1e-6), 1.0)
        shown = expected + max(-1.0, min(moved / weight, 1.0))
        return moved > 0.0, weight, shown - (moved > 0.0)

    def _rates(self, model: str, seen_in: int) -> _Floats:
        """Return P(sign) for a model's wrong answers and for its right ones."""
        rates = _GUESSES[seen_in]
        for name in (_ALL, model):
            if name in self._counts:
                seen = self._counts[name][seen_in]
                rates = seen + _PRIOR_OUTCOMES * rates
                rates = rates / rates.sum(axis=1, keepdims=True)
        return rates
