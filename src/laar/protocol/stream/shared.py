"""The state that both halves of a stream share. The request's half writes most of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from laar.core.decision import Decision
from laar.core.request import Api, Request
from laar.protocol.ports import Rework
from laar.protocol.settings import StreamSettings
from laar.protocol.since import Since
from laar.protocol.stream.dialect import NATIVE, Dialect


@dataclass(slots=True)
class Shared:
    """One stream's state.

    Args:
        settings: limits.
        since: returns when a question was first asked; None: every question is new.
        read_answer: the answer's body is read in the native shape.
        asked_at: when this question was first asked.
        dialect: the dialect of this Envoy.
        api: the body's format.
        asked: the model's name in the client's body.
        target: the name that took its place; None where it stays.
        rework: the hook's result for the body; None once it is of no more use.
        taken: an endpoint has accepted the request.
        shadow: the decision does not count, and the request passes unchanged.
        decision: the decision; None until there is one.
        overhead_us: microseconds that it took.
        hurried_at: from then on Envoy asks other endpoints beside the chosen one.
    """

    settings: StreamSettings
    since: Since | None
    read_answer: bool = False
    asked_at: float = 0.0
    dialect: Dialect = NATIVE
    api: Api = Api.OPAQUE
    asked: str = ""
    target: str | None = None
    rework: Rework | None = None
    taken: bool = False
    shadow: bool = False
    decision: Decision | None = None
    overhead_us: int = 0
    hurried_at: float = math.inf

    @property
    def asks_for_answer(self) -> bool:
        """Whether Envoy shows the answer's body on request alone, and is asked for it."""
        return self.read_answer and not self.dialect.shows_answers

    @property
    def sees_answer(self) -> bool:
        """Whether the answer's body passes through the picker."""
        return self.read_answer or self.dialect.shows_answers

    def refuse_rework(self) -> None:
        """Reports to the hook that no endpoint took its result."""
        if self.rework is not None:
            self.rework.refused()
            self.rework = None

    def stamp(self, request: Request) -> str:
        """The time at which the question was first asked, for a retry to send back."""
        return "" if self.since is None else self.since.stamp(request, self.asked_at)
