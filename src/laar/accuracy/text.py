"""The text of a question: hashed runs of characters, and the task they indicate.

A request that gives no task still has a question. Its runs of three to five bytes are hashed into a
fixed number of columns (feature hashing, Weinberger et al. 2009); one logistic regression per
measured task estimates how much the request resembles that task rather than the others. Each is
evaluated separately, so "like none of them" is a possible result. Whole words, and pairs of them,
added nothing on real questions. The sample is bounded, so the cost is the same for any prompt.
"""

from __future__ import annotations

from base64 import b64decode
from functools import partial
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.artifact import TEXT_COLUMNS, TextTerms
from laar.accuracy.features import head_and_tail

_HEAD_CHARS = 500
_TAIL_CHARS = 500
_MAX_BYTES = 1536  # per sample; longer ones, with multi-byte characters, are cut in the middle
_LONGEST = 5

_Floats = NDArray[np.float64]

_total = partial(np.add.reduce, axis=-1, keepdims=True)

_MULTIPLIER = np.uint64(0x94D049BB133111EB)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


def sample_of(text: str) -> str:
    """Return the head and the tail of a text, or all of it if it is short."""
    return head_and_tail(text, _HEAD_CHARS, _TAIL_CHARS)


def hashed(question: str) -> NDArray[np.float32]:
    """Hash the runs of bytes in a question's sample.

    Returns:
        Shape (TEXT_COLUMNS,), with a norm of 1, or 0 for a very short text. Dense, because
        multiplying it is faster than gathering the thousand columns that are not zero.
    """
    data = sample_of(question).lower().encode("utf-8", "replace")
    if len(data) > _MAX_BYTES:
        data = data[: _MAX_BYTES // 2] + data[-_MAX_BYTES // 2 :]
    if len(data) < _LONGEST:
        return np.zeros(TEXT_COLUMNS, np.float32)
    text = np.frombuffer(data, np.uint8).astype(np.uint64)
    runs = (text[:-2] * _MULTIPLIER + text[1:-1]) * _MULTIPLIER + text[2:]
    longer = runs[:-1] * _MULTIPLIER + text[3:]
    longest = longer[:-1] * _MULTIPLIER + text[4:]
    columns = _columns(np.concatenate([runs, longer, longest]))
    counts = np.bincount(columns, minlength=TEXT_COLUMNS).astype(np.float32)
    counts /= len(columns)
    return np.sqrt(counts, out=counts)


def _columns(runs: NDArray[np.uint64]) -> NDArray[np.int64]:
    mixed = runs >> np.uint64(29)
    mixed ^= runs
    mixed *= _MIX
    mixed >>= np.uint64(40)
    mixed &= np.uint64(TEXT_COLUMNS - 1)
    return mixed.view(np.int64)


class TextModel:
    """Infers which measured task a request resembles.

    Args:
        terms: the artifact's terms for texts.
    """

    def __init__(self, terms: TextTerms) -> None:
        self.tasks = tuple(column.task for column in terms.tasks)
        self._trust = np.array([(c.trust_intercept, c.trust_slope) for c in terms.tasks]).T
        self._intercepts = np.array([column.intercept for column in terms.tasks])
        weights = [np.frombuffer(b64decode(column.weights), np.int8) for column in terms.tasks]
        scales = np.array([[column.scale] for column in terms.tasks], np.float32)
        self._weights = np.stack(weights).astype(np.float32) * scales

    def guess(self, question: str) -> _Floats:
        """Return the share of each task in the request; the rest may be of any other task."""
        return shares_of(self._weights @ hashed(question) + self._intercepts, *self._trust)


def shares_of(log_odds: _Floats, intercepts: _Floats, slopes: _Floats) -> _Floats:
    """Return the shares of tasks in requests; their sum is the highest trust, doubted (`_DOUBT`).

    Args:
        log_odds: of each request (first axes) and task (last axis), by the regressions.
        intercepts: `trust_intercept` of each column.
        slopes: `trust_slope`.
    """
    trust = np.maximum.reduce(intercepts + slopes * log_odds, axis=-1, keepdims=True)
    trust = 2 * trust - log(_DOUBT)
    odds = np.exp(np.minimum(np.maximum(log_odds, -50), 50))
    # Squared, because otherwise a task half as likely would get a third of the request.
    likeness = (odds / (1 + odds)) ** 2
    shares: _Floats = likeness / (
        _total(likeness) * (1 + np.exp(-np.minimum(np.maximum(trust, -50), 50)))
    )
    return shares


_DOUBT = 8.0
"""The odds of the trust are squared and divided by this, because the largest trust of many tasks is
too high. Of left-out questions with a trust of 0.6, only a quarter were from known tasks; with 0.8,
half."""


class TaskTable(NamedTuple):
    """P(correct) by task and model, and lower bounds on leads over the best single model.

    Args:
        probabilities: by task, then model.
        base: P(correct) by model, for a request of no graded task.
        leads: lower bounds of each model's lead over the best single model, by task.
        stranger: the same bounds for an ungraded task.
    """

    probabilities: _Floats
    base: _Floats
    leads: _Floats
    stranger: _Floats

    def row(self, shares: _Floats) -> tuple[_Floats, _Floats]:
        """Return P(correct) by model for requests with these shares of tasks, and its sure part.

        In the sure part each model leads the best single one by at most the lower bound of its
        lead: otherwise a price of wrong answers would prefer a faster model that nobody knows.
        """
        unlike = 1 - _total(shares)
        row = shares @ self.probabilities + unlike * self.base
        lead = shares @ self.leads + unlike * self.stranger
        best = self.stranger.argmax()
        return row, np.minimum(row, row[..., best : best + 1] + lead)


_MARGIN = 0.75
"""Margin deducted from a model's lead: on a graded task, in standard errors over its questions; on
another, in standard deviations between tasks."""


def task_table(probabilities: _Floats, counts: _Floats, best: int) -> TaskTable:
    """Build a `TaskTable`.

    Args:
        probabilities: by task, then model; above 0.
        counts: number of outcomes for each; 0 if a base rate is used.
        best: index of the best single model.
    """
    # An ungraded task is one more draw from the tasks: Laplace's rule, with tasks as the trials.
    # A task has full weight once its sampling error is below the spread between tasks, about 0.2.
    most = counts.max(axis=1)
    weights = most / (most + 6)
    base = (weights @ probabilities + 1) / (weights.sum() + 2)
    leads = probabilities - probabilities[:, best : best + 1]
    stranger = leads.mean(axis=0) - _MARGIN * leads.std(axis=0, ddof=1)
    # Standard error of a difference between two models whose answers correlate by one half.
    variances = probabilities * (1 - probabilities) / np.maximum(counts, 1)
    leads = leads - _MARGIN * np.sqrt(variances)
    leads[:, best] = stranger[best] = 1.0
    return TaskTable(probabilities, base, leads, stranger)
