"""A policy as the settings compose it: filters, weighted scorers and a picker, all by name.

The form is that of llm-d's scheduling profiles, so that one can be read into the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from annotated_types import Gt, Le, MaxLen

__all__ = ["FilterUse", "PickerUse", "Profile", "ScorerUse"]

_STRICT: dict[str, Any] = {"extra": "forbid", "use_attribute_docstrings": True}
"""For readers of settings files: unknown keys are errors, and the text below a field is its
description."""

MAX_USES = 32
"""Filters or scorers of one policy. Each runs on every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterUse:
    """A filter of a policy."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str
    """laar's own, or an entry point of the group laar.filters."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Of the filter, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerUse:
    """A scorer of a policy."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str
    """laar's own, or an entry point of the group laar.scorers."""
    weight: Annotated[float, Gt(0), Le(1e6)] = 1.0
    """Its part of the sum, relative to those of the other scorers."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Of the scorer, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerUse:
    """The picker of a policy."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str = "max-score"
    """laar's own, or an entry point of the group laar.pickers."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Of the picker, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A policy composed of parts."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    filters: Annotated[tuple[FilterUse, ...], MaxLen(MAX_USES)] = ()
    """What one leaves out ranks behind the rest. One that would leave nothing is skipped."""
    scorers: Annotated[tuple[ScorerUse, ...], MaxLen(MAX_USES)]
    """The score of a candidate is the weighted mean of theirs, each in 0..1."""
    picker: PickerUse = field(default_factory=PickerUse)
    """Orders the candidates by score; the first serves, the next are fallbacks."""
