"""llm-d's session affinity: a request that names an endpoint, as each answer does, goes there.

The name is the pod's, or else the address, in base64, in the header that llm-d's scorer uses. As
there, it is a wish. laar finds by itself what prompts share, so this is only for clients written
for llm-d, if the settings name the plug-in (`routing.plugins`). Clients learn the names of pods.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable

import numpy as np

from laar.core.candidates import Group
from laar.core.decision import Decision
from laar.core.interfaces import View
from laar.core.plugin import Answering, Core, Part, Plugin
from laar.fleet.endpoints import Mask, Slots
from laar.request import Request

_HEADER = "x-session-token"
_POD_LABEL = "laar.dev/pod"


class SessionToken(Plugin):
    """Sets and reads the header, if `asked`: the settings name the plug-in."""

    name = "session-token"
    reads = (_HEADER,)

    def __init__(self, *, asked: bool = True) -> None:
        self._asked = asked

    def join(self, core: Core) -> None:
        """Keep the table of endpoints."""
        self._table = core.table

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Take part in all requests if asked."""
        return Part() if self._asked else None

    def keep(self, request: Request, part: Part, slots: Slots, now: float) -> Mask | None:
        """Prefer the endpoint that the request names."""
        try:
            named = b64decode((request.given or {}).get(_HEADER, ""), validate=True)
        except (binascii.Error, ValueError):
            return None
        names = [self._name(slot) for slot in slots.tolist()] if named else []
        return np.array([name == named for name in names]) if named in names else None

    def select(self, view: View, part: Part, at: int) -> Part:
        """Take part in the answer."""
        return part

    def answers(self, decision: Decision, now: float) -> Iterable[tuple[str, str]]:
        """Name the endpoint that serves."""
        return [(_HEADER, b64encode(self._name(decision.flight.slot)).decode())]

    def _name(self, slot: int) -> bytes:
        spec = self._table.spec(slot)
        return spec.labels.get(_POD_LABEL, spec.address).encode()
