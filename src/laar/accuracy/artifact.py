"""The capability artifact: the result of `laar fit`, as JSON that people can read and check.

It is data, not code. Its fields are validated on load (finite, in range, not too many), so an
artifact from any source is safe to load. The versions of the format and of the features must match;
otherwise the artifact is rejected with an error that gives the found and the expected version.

A model's log odds in a cell are its intercept plus its terms. A term is named by the classes it
applies to: ``language=ja``, ``bucket=4096``, ``language=ja bucket=4096`` for an interaction.
"""

from __future__ import annotations

from base64 import b64decode
from itertools import combinations
from typing import Annotated, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from laar.accuracy.assessment import BEND, MAX_BEND, MAX_SPREAD_SHARE
from laar.accuracy.difficulty import MAX_SPREAD
from laar.accuracy.features import FEATURES_SCHEMA, MAX_BUCKET_TOKENS, Features
from laar.errors import SettingError, first_fault

ARTIFACT_SCHEMA = 1

MAX_ARTIFACT_BYTES = 16 * 2**20
"""Maximum size of an artifact file. A thousand models in a hundred cells need less."""

MAX_MODELS = 1000
"""Maximum number of models in one artifact, and of tasks, whose fit takes minutes beyond that."""

MIN_CELL_OUTCOMES = 30
"""A cell with fewer outcomes is thin, and is shrunk toward its model's mean; even with 30 outcomes,
the standard error of a share is up to 0.09."""

TEXT_COLUMNS = 8192
"""Number of columns into which `laar.accuracy.text` hashes runs of characters."""

MAX_TEXT_TASKS = 256
"""Maximum number of tasks to classify texts into; their weights take 2.8 MB."""

FINGERPRINT_BYTES = 5
"""Length of a question's hash. With a million stored, one new question in a million collides."""

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_LogOdds = Annotated[float, Field(ge=-50, le=50, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class FittedCell(_Part):
    """The measured outcomes in one cell."""

    language: _Name
    bucket: Annotated[int, Field(ge=1, le=MAX_BUCKET_TOKENS)]
    task: _Name
    outcomes: _Count
    correct: _Count

    @property
    def features(self) -> Features:
        """The cell's key."""
        return Features(self.language, self.bucket, self.task)


class HeldOut(_Part):
    """Quality of a fit to one half of the queries, measured on the other half.

    Args:
        auc: None if all outcomes were correct or all wrong.
        calibration_error: expected calibration error over ten bins of equal width.
    """

    outcomes: _Count
    brier: _Share
    auc: _Share | None
    calibration_error: _Share


class Speed(_Part):
    """A model's latency as measured.

    Args:
        seconds_per_token: c(m), seconds of prefill per prompt token without context, fitted to
            times to first token if these were recorded.
        fixed_s: seconds that do not grow with the prompt, mostly decoding a typical answer.
        spread_s_per_token: standard error of c(m).
        start_s: the part of `fixed_s` before the first token.
        bend: how much `CONTEXT_TOKENS` of context add to the time per token, as a multiple of c(m).
    """

    seconds_per_token: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
    spread_s_per_token: _Seconds
    fixed_s: _Seconds
    samples: _Count
    start_s: _Seconds = 0.0
    bend: Annotated[float, Field(ge=0, le=MAX_BEND, allow_inf_nan=False)] = BEND

    @property
    def sure(self) -> bool:
        """Whether c(m) was measured well enough to be used."""
        return self.spread_s_per_token <= MAX_SPREAD_SHARE * self.seconds_per_token


class ModelCapability(_Part):
    """One model: its logistic regression, its evidence and its speed.

    Args:
        mean: share of correct outcomes over all cells, toward which thin cells are shrunk.
        regularisation: C of the regression, chosen by cross-validation; None if it was not fitted
            because all outcomes were correct or all wrong.
    """

    intercept: _LogOdds
    terms: Annotated[dict[_Name, _LogOdds], Field(max_length=100_000)]
    mean: _Share
    regularisation: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    cells: Annotated[list[FittedCell], Field(max_length=10_000)]
    speed: Speed | None
    chars_per_token: Annotated[
        dict[_Name, Annotated[float, Field(ge=0.01, le=1000)]], Field(max_length=256)
    ]
    held_out: HeldOut | None

    @property
    def outcomes(self) -> int:
        """Measured outcomes of the model, over all cells."""
        return sum(cell.outcomes for cell in self.cells)


class RetryTerms(_Part):
    """What a model's failure shows about the other models on the same request.

    Args:
        difficulty: spread, in log odds, of a question's difficulty, which all models share
            (`laar.accuracy.difficulty`); None if it was not fitted.
    """

    model_config = ConfigDict(extra="ignore")  # artifacts from 0.2.0 contain further terms

    difficulty: Annotated[float, Field(ge=0, le=MAX_SPREAD, allow_inf_nan=False)] | None = None


class TextColumn(_Part):
    """One task's logistic regression on a question's hashed text.

    Args:
        weights: base64 of one signed byte for each of `TEXT_COLUMNS` columns, in units of `scale`.
        trust_intercept: intercept of the linear function from the regression's log odds to the log
            odds that a question belongs to this task rather than to an ungraded one.
        trust_slope: slope of that function.
    """

    task: _Name
    intercept: _LogOdds
    scale: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    weights: Annotated[str, Field(max_length=2 * TEXT_COLUMNS)]
    trust_intercept: _LogOdds = 0.0
    trust_slope: _LogOdds = 1.0

    @field_validator("weights")
    @classmethod
    def _complete(cls, weights: str) -> str:
        if len(b64decode(weights, validate=True)) != TEXT_COLUMNS:
            raise ValueError(f"does not have {TEXT_COLUMNS} weights")
        return weights


class TextTerms(_Part):
    """How to infer a request's task from its text if the request gives none.

    Args:
        text_schema: version of the hashing.
    """

    text_schema: Literal[2] = 2
    tasks: Annotated[list[TextColumn], Field(min_length=2, max_length=MAX_TEXT_TASKS)]


class FittedOn(_Part):
    """The questions used in a fit, which must not be used to evaluate it.

    Args:
        held_out: share of the questions that the fit left out.
        questions: base64 of the questions' hashes, five bytes each, sorted.
    """

    held_out: _Share
    questions: Annotated[str, Field(max_length=8 * 2**20)]

    @field_validator("questions")
    @classmethod
    def _readable(cls, questions: str) -> str:
        b64decode(questions, validate=True)
        return questions


class Capability(_Part):
    """A capability artifact.

    Args:
        data_sha256: hash of the outcomes it was fitted on.
        text: terms for texts; None if the outcomes contain no questions or no tasks to distinguish.
        fitted_on: the questions used; None in an artifact of an older laar.
    """

    artifact_schema: int = ARTIFACT_SCHEMA
    features_schema: int = FEATURES_SCHEMA
    created: Annotated[str, Field(max_length=64)]
    data_sha256: Annotated[str, Field(max_length=64)]
    outcomes: _Count
    models: Annotated[dict[_Name, ModelCapability], Field(min_length=1, max_length=MAX_MODELS)]
    retry: RetryTerms
    text: TextTerms | None = None
    fitted_on: FittedOn | None = None

    @field_validator("text", mode="before")
    @classmethod
    def _without_old_terms(cls, text: object) -> object:
        """Ignore terms for texts that were hashed differently, as those of laar 0.3."""
        return None if isinstance(text, dict) and text.get("text_schema") == 1 else text

    def dump(self) -> bytes:
        """Return the artifact as JSON: indented, keys in a fixed order, ending in a newline."""
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(self.model_dump(mode="json"), option=options)


def terms_of(features: Features) -> tuple[str, ...]:
    """Return the names of the terms added to the intercept in a cell's log odds."""
    classes = [f"{name}={value}" for name, value in features._asdict().items()]
    return (*classes, *map(" ".join, combinations(classes, 2)))


def parse_artifact(data: bytes, *, source: str) -> Capability:
    """Parse and validate an artifact.

    Raise `SettingError` if the artifact is invalid; the message gives the reason and the remedy.

    Args:
        data: the file's bytes; may be untrusted.
        source: the file's name, for messages.
    """
    if len(data) > MAX_ARTIFACT_BYTES:
        raise SettingError(f"{source} has {len(data)} bytes; the limit is {MAX_ARTIFACT_BYTES}")
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError as fault:
        raise SettingError(f"{source} is not JSON ({fault}): run `laar fit` again") from fault
    if not isinstance(raw, dict):
        raise SettingError(f"{source} is not a capability artifact: run `laar fit`")
    for name, ours in (("artifact_schema", ARTIFACT_SCHEMA), ("features_schema", FEATURES_SCHEMA)):
        theirs = raw.get(name)
        if theirs != ours:
            raise SettingError(
                f"{source} has {name} {theirs!r:.40}, but laar reads {ours}: run `laar fit` again"
            )
    try:
        return Capability.model_validate(raw)
    except ValidationError as fault:
        faults = f"{first_fault(fault)} ({fault.error_count()} errors)"
        raise SettingError(f"{source}: {faults}: run `laar fit` again") from fault
