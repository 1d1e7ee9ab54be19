"""Whose documents may be reordered (ContextPilot at the picker)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import Field, model_validator

from laar.context import ContextSettings, Mode
from laar.settings.section import Applies, Section, declared, part

__all__ = ["Context", "ContextRoute"]


@declared(ContextSettings)
class ContextRoute(Section):
    """Requests whose documents the context hook may order, and how."""

    name: Annotated[str, MinLen(1), MaxLen(64), Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    """What metrics and /context call it."""
    path: Annotated[str, Field(pattern="^/"), MaxLen(1024)] = "/"
    """Prefix of the request paths it is about; all of them by default."""
    models: Annotated[tuple[str, ...], MaxLen(64)] = ()
    """Names that clients ask for; any by default."""
    mode: Mode = "off"
    """`observe` works out what would be gained and forwards the same bytes; `on` reorders. Off by
    default: order can carry meaning, so look first."""
    opt_in: bool = False
    """Whether `x-laar-context: on` turns it on for a request where the mode is `off` or `observe`.
    `x-laar-context: off` turns it off in any mode."""
    sample_answers: Annotated[float, Ge(0), Le(1)] = 0.1
    """Share of this path's answers that are read for the comparison, above what
    `bodies.sample_answers` reads already; about 50 us a chunk."""

    @property
    def hook(self) -> ContextSettings:
        """The hook's part."""
        return part(ContextSettings, self)


class Context(Section):
    """ContextPilot: documents in prompts, ordered so that prompts share longer prefixes."""

    applies: ClassVar = Applies.AT_ONCE

    routes: Annotated[tuple[ContextRoute, ...], MaxLen(16)] = ()
    """Who may be reordered; the first that fits a request counts. None: every body is forwarded as
    it came and nothing is looked at. A route that is changed goes on with what it remembers when
    only `path`, `models`, `mode`, `opt_in` or `sample_answers` are others; else, and after it was
    left out, it begins with an empty memory."""

    @model_validator(mode="after")
    def _names_differ(self) -> Context:
        names = [route.name for route in self.routes]
        if len(set(names)) < len(names):
            raise ValueError("two routes have one name; rename one")
        return self
