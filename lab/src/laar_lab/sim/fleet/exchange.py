"""A request to a virtual fleet, as seen by its client."""

from __future__ import annotations

from dataclasses import dataclass

from laar.core.decision import Decision
from laar.request import Request
from laar_lab.sim.fleet.prompts import Prompt


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request as seen by a client next to the picker, in seconds on the virtual clock.

    `decision.now` is later than `sent_s` if flow control delayed the request.
    """

    request: Request
    prompt: Prompt
    decision: Decision
    sent_s: float
    first_s: float = 0.0
    end_s: float = 0.0
    cached_tokens: int = 0
    status: int = 200
    picker: int = 0
    accepted: bool = False
    cancelled: bool = False
    failed: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """The address in use: the first chosen address that has not failed."""
        return (self.decision.address, *self.decision.fallbacks)[len(self.failed)]

    @property
    def latency_s(self) -> float:
        """Seconds from sending to the last byte."""
        return self.end_s - self.sent_s
