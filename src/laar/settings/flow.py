"""Settings of flow control: when requests wait and in what order (after the Medha paper)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from laar.declaring import Applies
from laar.flow.settings import FlowSettings
from laar.protocol.stream import StreamSettings
from laar.settings.section import Section, declared, part


@declared(FlowSettings)
@declared(StreamSettings, "tenant_header")
class Flow(Section):
    """Flow control: requests wait in slack order while the fleet is full.

    Even when it is off, turns of named sessions wait until the caches have room for their contexts;
    `flow.max_hold_s: 0` disables that.
    """

    applies: ClassVar = Applies.AT_ONCE

    enabled: Annotated[bool, Applies.AFTER_RESTART] = False
    """Whether requests wait in the picker while every endpoint is full. Otherwise each is sent at
    once and waits in an engine, in order of arrival, except turns of sessions whose contexts do not
    fit into any cache."""

    @property
    def admission(self) -> FlowSettings:
        """Return the settings of admission."""
        return part(FlowSettings, self)
