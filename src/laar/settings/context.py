"""Settings for requests whose documents may be reordered (after the ContextPilot paper)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import MaxLen, MinLen
from pydantic import Field, field_validator, model_validator

from laar.context.settings import ContextSettings, Mode
from laar.declaring import Applies
from laar.settings.section import Section, declared, part


@declared(ContextSettings)
class ContextRoute(Section):
    """A rule for requests whose documents the context hook may reorder."""

    name: Annotated[str, MinLen(1), MaxLen(64), Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    """Name of the route in metrics and /context."""
    path: Annotated[str, Field(pattern="^/"), MaxLen(1024)] = "/"
    """Prefix of the request paths that the route matches; all paths by default."""
    models: Annotated[tuple[str, ...], MaxLen(64)] = ()
    """Requested model names that the route matches; any by default."""
    mode: Mode = "off"
    """`observe` estimates the gain and forwards bodies unchanged; `on` reorders. Off by default:
    order can carry meaning, so observe first. `x-laar-context: off` leaves a request's body as it
    is."""

    @field_validator("mode", "dedup", mode="before", check_fields=False)
    @classmethod
    def _mode_of_truth(cls, mode: object) -> object:
        """Accept unquoted `on` and `off`, which YAML reads as booleans."""
        return {True: "on", False: "off"}[mode] if isinstance(mode, bool) else mode

    @property
    def hook(self) -> ContextSettings:
        """Return the hook's settings."""
        return part(ContextSettings, self)


class ContextSection(Section):
    """Reordering of documents in prompts (ContextPilot), so that prompts share longer prefixes."""

    applies: ClassVar = Applies.AT_ONCE

    routes: Annotated[tuple[ContextRoute, ...], MaxLen(16)] = ()
    """Rules for requests whose documents may be reordered; the first match applies. Without a rule,
    every body is forwarded unchanged. A changed route keeps its memory if only `path`,
    `models` or `mode` changed. Otherwise, or if it was removed in between, it keeps only
    the orders of running conversations."""

    @model_validator(mode="after")
    def _names_differ(self) -> ContextSection:
        names = [route.name for route in self.routes]
        if len(set(names)) < len(names):
            raise ValueError("two routes have the same name; rename one")
        return self
