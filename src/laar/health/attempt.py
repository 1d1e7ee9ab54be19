"""One request at one endpoint, from its decision to its end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laar.health.endpoint import Endpoint


class Stage(IntEnum):
    """How far an attempt has progressed; each stage has its own typical time."""

    SENT = 0
    ACCEPTED = 1
    ANSWERING = 2
    OVER = 3


@dataclass(slots=True, eq=False)
class Attempt:
    """The record of one attempt.

    Args:
        endpoint: where it was sent.
        stream: the answer is streamed; attempts are compared only with others of the same kind.
        at: time of the decision.
        predicted_s: the picker's prediction of its duration (`laar.core.attempts.usual_s`).
        tokens: the prompt's length.
        rtt_s: the round trip, since a distant endpoint is not a slow one.
        ahead: requests in flight at its endpoint when it was sent.
        timed: whether it is known when the endpoint received the request.
        name: the model name that the endpoint received.
        read: the body of its answer is read.
        stage: how far it has progressed.
        progress_at: when more of its answer last arrived.
        good: it is considered good, at least so far.
        judged: its outcome has been counted.
        useless: its answer was useless.
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
    name: str = ""
    read: bool = False
    stage: Stage = Stage.SENT
    progress_at: float = 0.0
    good: bool = False
    judged: bool = False
    useless: bool = False
    overdue: bool = False

    @property
    def is_followed(self) -> bool:
        """Whether its answer has begun, and its progress can be seen."""
        return self.read and self.stage is Stage.ANSWERING
