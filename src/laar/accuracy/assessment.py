"""What the core knows of accuracy: the estimates of one request's models, and of their speed.

`PlainAssessor` stands in for all that is measured (`laar.accuracy.assessor`) if nothing was, or if
that fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

CONTEXT_TOKENS = 65536.0
"""Unit of context in `Speed.bend`, chosen so that typical bends are about 1."""

BEND = 2.0
"""Default of `Speed.bend`, used until it is measured.

Counting operations gives 2 for dense models of 8B and 14B, and 1.2 for 70B.
"""

MAX_BEND = 64.0
"""Maximum bend; a toy model with two narrow layers reaches it."""

MAX_SPREAD_SHARE = 0.5
"""Relative error above which c(m) is treated as unmeasured."""

UNMEASURED_SECONDS_PER_TOKEN = 1e-4
"""c(m) without any measurement: the order of magnitude of an 8B model on one large GPU."""

Floats = npt.NDArray[np.float64]

Cell = tuple[str, int, str]
"""Language, length bucket in tokens, task."""


@dataclass(slots=True, kw_only=True)
class Assessment:
    """Estimates for one request, as arrays over the requested models.

    Args:
        tokens: length of the prompt in the model's tokens.
        probability: P(correct), given the models already tried.
        evidence: the artifact's number of outcomes in the cell, at its measured length.
        seconds_per_token: c(m), seconds of prefill per token.
        base_s: seconds that do not grow with the prompt.
        cell: language, length bucket and task used for the look-up.
        published: the artifact's P(correct) for the request's class, ignoring failed models and
            reported outcomes: the Q of LAAR. None if only `probability` is known.
        reported: decayed number of outcomes reported for the request's class; None if no outcomes
            were reported at all.
        sure: the part of `probability` that is sure enough to be multiplied by a price
            (`laar.accuracy.text`); None if that is all of it.
        repeats: share of `probability` that repeats keep (`laar.accuracy.difficulty`); None if they
            are worth nothing, or nothing was tried.
    """

    tokens: Floats
    probability: Floats
    evidence: Floats
    seconds_per_token: Floats
    base_s: Floats
    cell: Cell
    published: Floats | None = None
    reported: Floats | None = None
    repeats: Floats | None = None
    sure: Floats | None = None


class RequestText(Protocol):
    """The parts of a request on which estimates are based.

    Attributes:
        question: the last user message.
        chars: characters of the complete prompt.
        task: the client's name for the task; empty to detect the task.
        reproducible: it gets the same answer from a model each time.
    """

    question: str
    chars: int
    task: str
    reproducible: bool


class PlainAssessor:
    """Assumes that all models are correct and equally fast, with four characters per token."""

    CHARS_PER_TOKEN = 4.0
    SECONDS_PER_TOKEN = UNMEASURED_SECONDS_PER_TOKEN

    def assess(
        self, request: RequestText, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Return the same estimates for every model."""
        n = len(models)
        return Assessment(
            tokens=np.full(n, request.chars / self.CHARS_PER_TOKEN),
            probability=np.ones(n),
            evidence=np.zeros(n),
            seconds_per_token=np.full(n, self.SECONDS_PER_TOKEN),
            base_s=np.zeros(n),
            cell=("", 0, ""),
        )


class SpeedPrior(NamedTuple):
    """A model's speed, as assumed before it has served any request.

    Args:
        seconds_per_token: c(m).
        error: its relative standard error.
        start_s: seconds to the first token of an empty prompt.
        bend: how much `CONTEXT_TOKENS` of context add to the time per token, as a multiple of c(m).
        answer_s: seconds from the first token to the end of a typical answer; None if not measured.
    """

    seconds_per_token: float = UNMEASURED_SECONDS_PER_TOKEN
    error: float = MAX_SPREAD_SHARE
    start_s: float = 0.0
    bend: float = BEND
    answer_s: float | None = None
