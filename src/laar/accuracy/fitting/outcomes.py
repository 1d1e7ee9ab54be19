"""Measured outcomes: one line of JSON per query and model, as written by `laar measure`.

If a query and model occur twice the later line is used, and contradictions are counted: at
temperature 0 they indicate an endpoint that is not deterministic or two runs with different
settings.
"""

from __future__ import annotations

from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field

from laar.accuracy.features import GENERIC, Features, bucket_of_estimate
from laar.accuracy.tokens import TokenEstimator

MAX_FAULTS_NAMED = 20
"""Maximum unreadable entries that are listed; further ones are only counted."""

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_Tokens = Annotated[int, Field(ge=0, lt=2**31)]


class MeasuredOutcome(BaseModel):
    """One query answered by one model.

    Args:
        correct: the verdict; None if there was no answer, or the check could not judge it.
        language: the language that `language_of` detects, as in serving.
        prompt_chars: characters of all messages, from which serving estimates tokens.
        prompt_tokens: prompt tokens in the reported usage; None if not reported.
        cached_tokens: prompt tokens found in the endpoint's prefix cache.
        ttft_s: time to first token; None unless the answer was streamed.
        status: HTTP status; 0 for no answer.
        score: score in 0..1, if the grader gave one.
        dollars: cost of the answer, if known.
        text: a bounded sample of the question for detecting tasks, if it may be kept.
        task_named: whether the task was named in the file rather than detected.
        base: the base model, if `model` is an adapter.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    query_id: _Name
    model: _Name
    correct: bool | None
    language: _Name
    task: _Name = GENERIC
    prompt_chars: _Tokens
    prompt_tokens: _Tokens | None = None
    cached_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    latency_s: _Seconds
    ttft_s: _Seconds | None = None
    status: int = 200
    endpoint: str | None = None
    error: str | None = None
    score: Annotated[float, Field(ge=0, le=1)] | None = None
    dollars: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    text: Annotated[str, Field(max_length=2048)] | None = None
    task_named: bool = True
    base: _Name | None = None

    @property
    def right(self) -> float:
        """The score; 1 or 0 if there is only a verdict."""
        return float(bool(self.correct)) if self.score is None else self.score


class Verdicts:
    """The last verdict on each question and model.

    Attributes:
        kept: verdicts by query and model.
        unjudged: number of outcomes without a verdict, which are left out.
        contradictions: number of verdicts reversed by a later one on the same question and model.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], MeasuredOutcome] = {}
        self.unjudged = 0
        self.contradictions = 0

    def add(self, outcome: MeasuredOutcome) -> None:
        """Add an outcome; it replaces an earlier one for the same query and model."""
        if outcome.correct is None:
            self.unjudged += 1
            return
        key = (outcome.query_id, outcome.model)
        earlier = self.kept.get(key)
        self.contradictions += earlier is not None and earlier.correct != outcome.correct
        self.kept[key] = outcome


def features_of_outcome(outcome: MeasuredOutcome) -> Features:
    """Return the cell of an outcome, estimating its length if no usage was reported."""
    tokens: float | None = outcome.prompt_tokens
    if tokens is None:
        tokens = TokenEstimator().estimate(outcome.prompt_chars, outcome.language)
    return Features(outcome.language, bucket_of_estimate(tokens), outcome.task)


def dump_outcome(outcome: MeasuredOutcome) -> bytes:
    """Return an outcome as a line of JSON, including the newline."""
    fields = outcome.model_dump(mode="json")
    for name in ("score", "dollars", "text", "base"):
        if fields[name] is None:
            del fields[name]
    if fields["task_named"]:
        del fields["task_named"]
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def parse_outcome(line: bytes) -> MeasuredOutcome:
    """Parse a line of JSON.

    Raises:
        ValueError: the line is not an outcome.
    """
    return MeasuredOutcome.model_validate(orjson.loads(line))
