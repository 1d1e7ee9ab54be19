"""When requests wait, and in which order (Medha at the picker)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from laar.flow.admission import FlowSettings
from laar.settings.section import Applies, Section, declared, part

__all__ = ["Flow"]


@declared(FlowSettings)
class Flow(Section):
    """Flow control: requests wait in slack order while the fleet is full."""

    applies: ClassVar = Applies.AT_ONCE

    enabled: Annotated[bool, Applies.AFTER_RESTART] = False
    """Whether requests wait here while every endpoint is full. Off, each is sent at once and waits
    in an engine, in order of arrival."""
    tenant_header: str = Field(
        "x-gateway-inference-fairness-id",
        min_length=1,
        max_length=128,
        pattern=r"^[a-z0-9-]+$",
        description="Request header whose value names the tenant; turns between tenants go by "
        "tokens. In "
        "lower case. Whoever sets it chooses whom to be, so let the gateway write it.",
    )

    @property
    def admission(self) -> FlowSettings:
        """The admission's part."""
        return part(FlowSettings, self)
