"""What all sections of the settings have in common, and when a change of a setting counts."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

__all__ = ["Applies", "Section", "leaves", "value_at"]


class Applies(StrEnum):
    """When a changed setting is in effect.

    Said once for a section (`applies`), and for a field that differs in its annotation:
    ``Annotated[bool, Applies.AFTER_RESTART]``.
    """

    AT_ONCE = "at once"
    AFTER_RESTART = "after a restart"


class Section(BaseModel):
    """Strict and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    applies: ClassVar[Applies | None] = None
    """Of all its fields that say nothing else; a section whose fields all do says none."""


def leaves(section: type[Section], path: str = "") -> Iterator[tuple[str, Applies | None]]:
    """Every setting by its path, as ``routing.policy``, and when it applies.

    A list or a map is one setting, whatever is in it, and so is a section that may be left out.
    """
    for name, field in section.model_fields.items():
        below = field.annotation
        if isinstance(below, type) and issubclass(below, Section):
            yield from leaves(below, f"{path}{name}.")
        else:
            yield f"{path}{name}", _applies(section, field)


def value_at(settings: Section, path: str) -> Any:
    """The value of a setting."""
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _applies(section: type[Section], field: FieldInfo) -> Applies | None:
    own = (mark for mark in field.metadata if isinstance(mark, Applies))
    return next(own, section.applies)
