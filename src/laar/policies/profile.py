"""A policy composed in the settings: filters, weighted scorers and a picker, all by name.

The form follows llm-d's scheduling profiles, so that those can be converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from annotated_types import Gt, Le, MaxLen

from laar.declaring import describe

_STRICT: dict[str, Any] = {"extra": "forbid", "json_schema_extra": describe}
"""Config for pydantic, which reads the settings: unknown keys are errors, and the text below a
field becomes its description."""

MAX_USES = 32
"""Maximum number of filters, and of scorers, in one policy. Each runs on every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartUse:
    """A part of a policy: a filter, a scorer or a picker."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str
    """Name of one of laar's parts of this kind, or of an entry point of the group laar.filters,
    laar.scorers or laar.pickers."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """The part's parameters, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerUse(PartUse):
    """A scorer of a policy."""

    weight: Annotated[float, Gt(0), Le(1e6)] = 1.0
    """Weight of the scorer, relative to the weights of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerUse(PartUse):
    """The picker of a policy."""

    name: str = "max-score"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A policy composed of filters, scorers and a picker."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    filters: Annotated[tuple[PartUse, ...], MaxLen(MAX_USES)] = ()
    """Filters. Endpoints that a filter excludes rank last. A filter that would leave no endpoint is
    skipped."""
    scorers: Annotated[tuple[ScorerUse, ...], MaxLen(MAX_USES)]
    """Scorers. A candidate's score is the weighted mean of their scores, each in 0..1."""
    picker: PickerUse = field(default_factory=PickerUse)
    """Picker, which orders the candidates by score. The first serves; the next ones are
    fallbacks."""
