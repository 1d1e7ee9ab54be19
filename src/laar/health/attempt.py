"""One request at one endpoint, from its decision to its end, as health sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Stage(IntEnum):
    """How far an attempt has come; each has its own usual time."""

    SENT = 0
    ACCEPTED = 1
    ANSWERING = 2
    OVER = 3


@dataclass(slots=True, eq=False)
class Attempt:
    """The record of one attempt, made for each decision.

    `group` is the endpoint's model and whether the answer is streamed: attempts of one group are
    compared. `predicted_s` is the picker's own price of its seconds, `tokens` the prompt's length,
    `rtt_s` the round trip: a far endpoint is not a slow one. `ahead` is how many were in flight at
    its endpoint when it was sent.
    `read` is true where the body of its answer is seen, `good` where it counted as good so far,
    `judged` where it counted at all, `useless` where its answer was of no use, `overdue` where it
    was silent for too long. `progress_at` is when its answer was last seen to go on. `timed` is
    false where the time at which the endpoint got it is unknown.
    """

    slot: int
    group: tuple[str, bool]
    at: float
    predicted_s: float
    tokens: float
    rtt_s: float
    ahead: int = 0
    trial: bool = False
    timed: bool = True
    read: bool = False
    stage: Stage = Stage.SENT
    progress_at: float = 0.0
    good: bool = False
    judged: bool = False
    useless: bool = False
    overdue: bool = False

    @property
    def is_accepted(self) -> bool:
        """Whether the head of its answer has come."""
        return self.stage is not Stage.SENT

    @property
    def is_followed(self) -> bool:
        """Whether its answer, which has begun, is seen to go on or to halt."""
        return self.read and self.stage is Stage.ANSWERING
