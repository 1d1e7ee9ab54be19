"""The base class of settings sections, and building sections from features' dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from laar.declaring import FIXED, Applies, Matches, describe, hints_of
from laar.errors import SettingError

Declared = TypeVar("Declared")
Made = TypeVar("Made", bound="Section")


class Section(BaseModel):
    """A strict, immutable section; the string below a field is its description."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra=describe,
        defer_build=True,  # of the 20 sections, only the root is parsed directly
    )

    applies: ClassVar[Applies | None] = None
    """When a change applies, for fields without a mark; None if every field has one."""
    parts: ClassVar[tuple[type[Any], ...]] = ()
    """Features' dataclasses whose settings are all in this section."""
    described_by: ClassVar[tuple[type[Any], ...]] = ()
    """Dataclasses whose fields are included, to describe them (`laar.declaring.field_texts`)."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for known in self.parts:
            try:
                part(known, self)
            except SettingError as fault:
                text = str(fault).removeprefix(known.section).lstrip(".: ")
                raise ValueError(text) from None
        return self


def declared(feature: type[Any], *names: str) -> Callable[[type[Made]], type[Made]]:
    """Add the fields of a feature's dataclass to a section (`laar.declaring`).

    Fields of nested dataclasses are added as well, since the file is flat. A field of the same name
    in the section takes precedence.

    Args:
        feature: the dataclass.
        names: names of the fields to add; by default all.
    """

    def build(section: type[Made]) -> type[Made]:
        taken = {
            name: setting
            for name, setting in _settings(feature)
            if name not in section.model_fields and (not names or name in names)
        }
        made = create_model(
            section.__name__,
            __base__=section,
            __doc__=section.__doc__,
            __module__=section.__module__,
            **taken,
        )
        made.described_by = (*section.described_by, *_sources(feature))
        made.parts = section.parts if names else (*section.parts, feature)
        return made

    return build


def part(feature: type[Declared], *sections: Section) -> Declared:
    """Build a feature's dataclass from sections' values; `SettingError` if they break its rules."""
    values: dict[str, Any] = {}
    for name, hint in hints_of(feature).items():
        if isinstance(hint, type) and is_dataclass(hint):
            values[name] = part(hint, *sections)
            continue
        for section in sections:
            if name in type(section).model_fields:
                values[name] = getattr(section, name)
                break
    return feature(**values)


def leaves(section: type[Section], path: str = "") -> Iterator[tuple[str, Applies | None]]:
    """Yield the path of every setting, such as ``routing.policy``, and when a change applies.

    A list, a map or an optional section is one setting.
    """
    for name, field in section.model_fields.items():
        below = field.annotation
        if isinstance(below, type) and issubclass(below, Section):
            yield from leaves(below, f"{path}{name}.")
        else:
            own = (mark for mark in field.metadata if isinstance(mark, Applies))
            yield f"{path}{name}", next(own, section.applies)


def value_at(settings: Section, path: str) -> Any:
    """Return the value of a setting by its path."""
    return attrgetter(path)(settings)


def _settings(feature: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and pydantic definitions of a dataclass's fields."""
    hints = hints_of(feature)
    for field in fields(feature):
        hint = hints.get(field.name)
        if hint is None:
            continue
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _settings(hint)
            continue
        marks = list(get_args(hint)[1:]) if get_origin(hint) is Annotated else []
        if FIXED in marks:
            continue
        marks = [Field(pattern=m.pattern) if isinstance(m, Matches) else m for m in marks]
        if not any(isinstance(mark, Applies) for mark in marks):
            marks.append(feature.applies)
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        yield field.name, (Annotated[(bare, *marks)], ... if default is MISSING else default)


def _sources(feature: type[Any]) -> Iterator[type[Any]]:
    """Yield a dataclass and its nested dataclasses."""
    for hint in hints_of(feature).values():
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _sources(hint)
    yield feature
