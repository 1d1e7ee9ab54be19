"""Measured outcomes: one line of JSON per query and model, as written by `laar measure`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field

from laar.accuracy.features import GENERIC, Features, bucket_of
from laar.accuracy.tokens import rough_tokens

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_Tokens = Annotated[int, Field(ge=0, lt=2**31)]


class MeasuredOutcome(BaseModel):
    """One query answered by one model.

    Args:
        correct: the verdict; None if there was no answer, or if the check could not judge it.
        language: the language that `language_of` detects, as in serving.
        prompt_chars: characters of all messages, from which serving estimates tokens.
        prompt_tokens: prompt tokens in the reported usage; None if not reported.
        cached_tokens: prompt tokens found in the endpoint's prefix cache.
        ttft_s: time to first token; None unless the answer was streamed.
        status: HTTP status; 0 for no answer.
        score: score in 0..1, if the grader gave one.
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
    text: Annotated[str, Field(max_length=2048)] | None = None
    task_named: bool = True
    base: _Name | None = None

    @property
    def right(self) -> float:
        """The score; 1 or 0 if there is only a verdict."""
        return float(bool(self.correct)) if self.score is None else self.score


def features_of_outcome(outcome: MeasuredOutcome) -> Features:
    """Return the cell of an outcome, estimating its length if no usage was reported."""
    tokens: float | None = outcome.prompt_tokens
    if tokens is None:
        tokens = rough_tokens(outcome.prompt_chars, outcome.language)
    return Features(outcome.language, bucket_of(tokens), outcome.task)


def by_query(outcomes: Iterable[MeasuredOutcome]) -> dict[str, dict[str, MeasuredOutcome]]:
    """Return the outcomes by query, then model."""
    grouped: dict[str, dict[str, MeasuredOutcome]] = defaultdict(dict)
    for outcome in outcomes:
        grouped[outcome.query_id][outcome.model] = outcome
    return grouped


def dump_outcome(outcome: MeasuredOutcome) -> bytes:
    """Return an outcome as a line of JSON, including the newline."""
    fields = outcome.model_dump(mode="json")
    for name in ("score", "text", "base"):
        if fields[name] is None:
            del fields[name]
    if fields["task_named"]:
        del fields["task_named"]
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
