"""One request at one endpoint, from its decision to its end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laar.health.endpoint import Endpoint


class Stage(IntEnum):
    """How far an attempt has come; each has its own usual time."""

    SENT = 0
    ACCEPTED = 1
    ANSWERING = 2
    OVER = 3


@dataclass(slots=True, eq=False)
class Attempt:
    """The record of one attempt, made for each decision.

    Args:
        endpoint: where it was sent.
        stream: the answer is streamed; attempts are compared with others of the same kind.
        at: when it was decided.
        predicted_s: the picker's own prediction of its seconds.
        tokens: the prompt's length.
        rtt_s: the round trip: a far endpoint is not a slow one.
        ahead: how many were in flight at its endpoint when it was sent.
        timed: false where the time at which the endpoint got it is unknown.
        read: the body of its answer is read.
        stage: how far it has come.
        progress_at: when its answer was last seen to go on.
        good: it counted as good so far.
        judged: it counted at all.
        useless: its answer was of no use.
        overdue: it was silent for too long.
    """

    endpoint: Endpoint
    stream: bool
    at: float
    predicted_s: float
    tokens: float
    rtt_s: float
    ahead: int = 0
    timed: bool = True
    read: bool = False
    stage: Stage = Stage.SENT
    progress_at: float = 0.0
    good: bool = False
    judged: bool = False
    useless: bool = False
    overdue: bool = False

    @property
    def is_followed(self) -> bool:
        """Whether its answer, which has begun, is seen to go on or to halt."""
        return self.read and self.stage is Stage.ANSWERING
