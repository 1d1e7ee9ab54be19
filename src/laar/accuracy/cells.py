"""Cells of reported outcomes, and their serialization in a saved state.

A saved cell is a list of the fields of `Saved`, of which the last may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from laar.accuracy.features import MAX_BUCKET_TOKENS, MIN_LEARNED_BUCKET_TOKENS, Features
from laar.accuracy.trust import Evidence

MAX_NAME_CHARS = 256

_MAX_COUNT = 1e9  # far above any sum of decaying weights; only an invalid saved state exceeds it


@dataclass(slots=True)
class Cell:
    """Outcomes of one model on one kind of request.

    Args:
        at_s: when the counts and the level were last updated.
        tenant: tenant of the outcome that created it.
        correct: decaying count; an offset can move it slightly below 0 or above `outcomes`.
        levels: level of the leaky bucket that limits reports, by tenant.
        prior: the artifact's probability; None if it is unknown.
        evidence: the cell's evidence about the prior.
        weight: the prior's full weight in outcomes; None until looked up.
    """

    at_s: float
    tenant: str = ""
    correct: float = 0.0
    outcomes: float = 0.0
    levels: dict[str, float] = field(default_factory=dict)
    prior: float | None = None
    evidence: Evidence = ()
    weight: float | None = None


_Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
_Amount = Annotated[float, Meta(ge=0, le=_MAX_COUNT)]


class Saved(NamedTuple):
    """A cell in a saved state."""

    model: _Name
    language: _Name
    bucket: Annotated[int, Meta(ge=0, le=MAX_BUCKET_TOKENS)]
    task: _Name
    correct: Annotated[float, Meta(ge=-_MAX_COUNT, le=2 * _MAX_COUNT)]
    outcomes: _Amount
    level: _Amount
    prior: Annotated[float, Meta(ge=0, le=1)] | None = None

    @property
    def features(self) -> Features:
        """The cell's features."""
        return learned(Features(self.language, self.bucket, self.task))


def learned(features: Features) -> Features:
    """Return the features of the cell in which outcomes with these features are counted."""
    if features.bucket >= MIN_LEARNED_BUCKET_TOKENS:
        return features
    return features._replace(bucket=MIN_LEARNED_BUCKET_TOKENS)


def read_saved(entry: object) -> Saved | None:
    """Read one list of a saved state; return None if it is invalid."""
    try:
        read = msgspec.convert(entry, Saved)
    except (msgspec.ValidationError, RecursionError):
        return None
    return read if -read.outcomes <= read.correct <= 2 * read.outcomes else None
