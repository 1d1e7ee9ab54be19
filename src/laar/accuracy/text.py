"""The words of a request: hashed n-grams, and the task they indicate.

A request that gives no task still has a question, usually a system prompt, and body features. Their
words, word pairs, character n-grams and body features are hashed into a fixed number of columns
(feature hashing, Weinberger et al. 2009); one logistic regression per measured task estimates how
much the request resembles that task rather than the others. Each is evaluated separately, so "like
none of them" is a possible result.

Words are found and hashed for a whole sample together, in numpy: a word's hash is a polynomial over
its bytes, from one cumulative pass. In scripts without spaces each character is a word. The
sample is bounded, so the cost is the same for any prompt.
"""

from __future__ import annotations

from base64 import b64decode
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import TEXT_COLUMNS, TextTerms
from laar.accuracy.features import head_and_tail

_HEAD_CHARS = 500
_TAIL_CHARS = 500
_SYSTEM_CHARS = 200
_MAX_MARKS = 16
_MAX_BYTES = 1536  # per sample; longer ones, with multi-byte characters, are cut in the middle

# Of question, system prompt (which describes the application) and body features.
_WEIGHTS = (0.7, 0.5, 0.2)
_CHARACTERS_WEIGHT = 0.7  # weight of the question's character n-grams
_SALTS = np.array([0, 0x51AB, 0x7E11], np.uint64)
_LONGEST = 5

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]

_total = partial(np.add.reduce, axis=-1, keepdims=True)

_GAP, _WORD, _SIGN, _CHARACTER = range(4)


def _kinds() -> bytes:
    kinds = bytearray([_SIGN] * 128 + [_WORD] * 96)
    kinds += bytes([_CHARACTER] * 32)  # lead bytes of 3 or 4 bytes: mostly scripts without spaces
    for byte in b"abcdefghijklmnopqrstuvwxyz0123456789_":
        kinds[byte] = _WORD
    for byte in b" \t\r\n\x0b\x0c\x00":
        kinds[byte] = _GAP
    return bytes(kinds)


_KINDS = _kinds()
_BEGINS = bytes((0, 1, 2, 2)[kind] for kind in _KINDS)
_JOINS = bytes((0, 1, 0, 1)[kind] for kind in _KINDS)
"""A byte begins a word if its value in the first table exceeds the second table's for the previous
byte: signs and characters always do, letters do not after a letter or a character."""
_DIGITS = bytes(0 if kind == _GAP else (byte + 1) & 255 for byte, kind in enumerate(_KINDS))
"""The value of a byte in a word's hash; byte 255 never occurs in UTF-8."""
_BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64
_POWER = np.cumprod(np.full(_MAX_BYTES, _BASE, np.uint64))
_BACK = np.cumprod(np.full(_MAX_BYTES, pow(_BASE, -1, 1 << 64), np.uint64))
_PAIR = np.uint64(0x94D049BB133111EB)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


class Said(NamedTuple):
    """The text of a request, bounded: its question, system prompt, and body features."""

    question: str
    system: str = ""
    marks: tuple[str, ...] = ()


def sample_of(text: str) -> str:
    """Return the head and the tail of a text, or all of it if it is short."""
    return head_and_tail(text, _HEAD_CHARS, _TAIL_CHARS)


def hashed(said: Said) -> NDArray[np.float32]:
    """Hash the words and characters of a request's samples.

    Returns:
        Shape (TEXT_COLUMNS,), with a norm of about 1. Dense, because multiplying it is faster than
        gathering the thousand columns that are not zero.
    """
    question = _bytes(sample_of(said.question))
    parts = [_of_words(question, 0), _of_characters(question)]
    if said.system or said.marks:
        parts.extend(_of_application(said.system[:_SYSTEM_CHARS], said.marks[:_MAX_MARKS]))
    counts = [len(grams) for grams, _ in parts]
    # The norm of each part is its weight, however many n-grams it has.
    shares = [weight**2 / max(count, 1) for count, (_, weight) in zip(counts, parts, strict=True)]
    squares = np.bincount(
        _columns(np.concatenate([grams for grams, _ in parts])),
        weights=np.repeat(shares, counts),
        minlength=TEXT_COLUMNS,
    ).astype(np.float32)
    return np.sqrt(squares, out=squares)


@lru_cache(maxsize=256)  # applications reuse their system prompt and body features
def _of_application(
    system: str, marks: tuple[str, ...]
) -> tuple[tuple[NDArray[np.uint64], float], ...]:
    shape = "\n".join(mark[:64] for mark in marks)
    return _of_words(_bytes(system), 1), _of_words(_bytes(shape), 2)


def _bytes(text: str) -> bytes:
    data = text.lower().encode("utf-8", "replace")
    if len(data) <= _MAX_BYTES:
        return data
    return data[: _MAX_BYTES // 2] + data[-_MAX_BYTES // 2 :]


def _of_words(data: bytes, part: int) -> tuple[NDArray[np.uint64], float]:
    words = _words(data)
    grams = np.concatenate([words, words[:-1] * _PAIR + words[1:]])
    return (grams + _SALTS[part] if part else grams), _WEIGHTS[part]


def _of_characters(data: bytes) -> tuple[NDArray[np.uint64], float]:
    """Return runs of three, four and five bytes."""
    text = np.frombuffer(data, np.uint8).astype(np.uint64)
    if len(text) < _LONGEST:
        return np.zeros(0, np.uint64), 0.0
    runs = (text[:-2] * _PAIR + text[1:-1]) * _PAIR + text[2:]
    longer = runs[:-1] * _PAIR + text[3:]
    longest = longer[:-1] * _PAIR + text[4:]
    return np.concatenate([runs, longer, longest]), _CHARACTERS_WEIGHT


def _columns(grams: NDArray[np.uint64]) -> _Ints:
    mixed = grams >> np.uint64(29)
    mixed ^= grams
    mixed *= _MIX
    mixed >>= np.uint64(40)
    mixed &= np.uint64(TEXT_COLUMNS - 1)
    return mixed.view(np.int64)


def _words(text: bytes) -> NDArray[np.uint64]:
    """Return a hash for each word, sign and ideograph, in order."""
    begins = np.frombuffer(text.translate(_BEGINS), np.uint8)
    joins = np.frombuffer(b"\0" + text[:-1].translate(_JOINS), np.uint8)
    starts = (begins > joins).nonzero()[0]
    if not len(starts):
        return np.zeros(0, np.uint64)
    digits = np.frombuffer(text.translate(_DIGITS), np.uint8).astype(np.uint64)
    terms = digits * _POWER[: len(digits)]
    return np.asarray(np.add.reduceat(terms, starts) * _BACK[starts], np.uint64)


class TextModel:
    """Infers which measured task a request resembles.

    Args:
        terms: the artifact's terms for texts.
    """

    def __init__(self, terms: TextTerms) -> None:
        self.tasks = tuple(column.task for column in terms.tasks)
        self.margins = _SURER if (terms.gain_unseen or 0.0) < -MOST_LOSS else _SURE
        self._trust = np.array([(c.trust_intercept, c.trust_slope) for c in terms.tasks]).T
        self._intercepts = np.array([column.intercept for column in terms.tasks])
        weights = [np.frombuffer(b64decode(column.weights), np.int8) for column in terms.tasks]
        scales = np.array([[column.scale] for column in terms.tasks], np.float32)
        self._weights = np.stack(weights).astype(np.float32) * scales

    def guess(self, said: Said) -> _Floats:
        """Return the share of each task in the request; their sum is the trust in the tasks."""
        return shares_of(self._weights @ hashed(said) + self._intercepts, *self._trust)


def shares_of(log_odds: _Floats, intercepts: _Floats, slopes: _Floats) -> _Floats:
    """Return the shares of tasks in requests; their sum is the highest trust in any task.

    Args:
        log_odds: of each request (first axes) and task (last axis), by the regressions.
        intercepts: `trust_intercept` of each column.
        slopes: `trust_slope`.
    """
    trust = np.maximum.reduce(intercepts + slopes * log_odds, axis=-1, keepdims=True)
    odds = np.exp(np.minimum(np.maximum(log_odds, -50), 50))
    # Squared, because otherwise a task half as likely would get a third of the request.
    likeness = (odds / (1 + odds)) ** 2
    shares: _Floats = likeness / (
        _total(likeness) * (1 + np.exp(-np.minimum(np.maximum(trust, -50), 50)))
    )
    return shares


class TaskTable(NamedTuple):
    """P(correct) by task and model, and lower bounds on leads over the best single model.

    Args:
        probabilities: by task, then model.
        base: P(correct) by model, for a request of no graded task.
        level: sum over the models of their means over the tasks.
        leads: lower bounds of each model's lead over the best single model, by task.
        stranger: the same bounds for an ungraded task.
    """

    probabilities: _Floats
    base: _Floats
    level: float
    leads: _Floats
    stranger: _Floats

    def row(self, shares: _Floats) -> _Floats:
        """Return P(correct) by model for requests with these shares of tasks.

        No model exceeds the best single model by more than its lower bound. Then all are multiplied
        by one factor, so that their mean reflects the reduced trust (`_DOUBT`); no choice changes.
        """
        trust, likely = _total(shares), shares @ self.probabilities
        row = likely + (1 - trust) * self.base
        lead = shares @ self.leads + (1 - trust) * self.stranger
        best = self.stranger.argmax()
        capped = np.minimum(row, row[..., best : best + 1] + np.maximum(lead, -_LESS))
        kept = trust / (trust**2 + _DOUBT * (1 - trust) ** 2)  # the share of the trust that is left
        level = self.level + kept * (_total(likely) - trust * self.level)
        scaled: _Floats = capped * (level / _total(row))
        return scaled


_LESS = 1e-9  # ranks a model below the best single model unless it is clearly better

_DOUBT = 8.0
"""The mean of P(correct) uses a reduced trust, whose odds are the trust's squared odds divided by
this, because the largest trust of many tasks is too high. Of left-out questions with a trust of
0.6, only a quarter were from known tasks; with 0.8, half."""

_SURE, _SURER = (0.5, 0.5), (1.0, 2.0)
"""Margins deducted from a model's lead: on a graded task, in standard errors over its questions; on
another, in standard deviations between tasks. Decision 11 gives the cost of other values."""

MOST_LOSS = 0.003
"""Estimated loss on tasks left out of the fit, as a share of the answers, above which `_SURER`
applies: on random subsets of decision 11's nine models, the estimate mostly proved right."""


def task_table(
    probabilities: _Floats,
    counts: _Floats,
    base: _Floats,
    best: int,
    margins: tuple[float, float] = _SURE,
) -> TaskTable:
    """Build a `TaskTable`.

    Args:
        probabilities: by task, then model; above 0.
        counts: number of outcomes for each; 0 if a base rate is used.
        base: P(correct) by model, for a request of no graded task.
        best: index of the best single model.
        margins: margins deducted from leads, on a graded and on an ungraded task.
    """
    # A task has full weight once its sampling error is below the spread between tasks, about 0.2.
    means = np.average(probabilities, axis=0, weights=np.maximum(counts, 1e-9) / (counts + 6))
    leads = probabilities - probabilities[:, best : best + 1]
    stranger = leads.mean(axis=0) - margins[1] * leads.std(axis=0, ddof=1)
    # Standard error of a difference between two models whose answers correlate by one half.
    variances = probabilities * (1 - probabilities) / np.maximum(counts, 1)
    leads = leads - margins[0] * np.sqrt(variances)
    leads[:, best] = stranger[best] = 1.0
    return TaskTable(probabilities, base, float(means.sum()), leads, stranger)
