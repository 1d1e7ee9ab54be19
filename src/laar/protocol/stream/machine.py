"""The machine of one stream. It moves through the phases of `TRANSITIONS`, and decides nothing.

It asks instead: `Read`, `Ask` and `Served` are questions, each the last action of its list, and the
driver feeds the answer (`HasRead`, `Decided` or `Refused`, `Noted`). All other actions are messages
to Envoy, or notes to the driver.

`receive` is eager: when it returns, the machine is done with the event, and nothing of it moves
while the driver writes. `Ended` is noted before the last message of an answer, since Envoy closes
the stream on getting that one, often before writing it has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from laar.protocol.events import Action, Closed, Event
from laar.protocol.stream.answer_half import ANSWER_HANDLERS, AnswerHalf
from laar.protocol.stream.phases import TRANSITIONS, RequestPhase, ResponsePhase
from laar.protocol.stream.request_half import REQUEST_HANDLERS, RequestHalf

_WITH_ENVOY = (RequestPhase.SENT, RequestPhase.PASSING)
_OVER = RequestPhase.OVER  # to look a member up takes as long as a call
_HANDLERS: Mapping[type, Callable[[Any, Any, float, list[Action]], Any]] = {
    **REQUEST_HANDLERS,
    **ANSWER_HANDLERS,
}


class Stream(RequestHalf, AnswerHalf):
    """The life of one stream; the arguments are those of `StreamState`."""

    ignored = 0
    """Events that had no entry in the phase in which they came."""

    def receive(self, event: Event, now: float) -> list[Action]:
        """Handle an event; return the actions that it causes, in order."""
        kind = type(event)
        allowed = TRANSITIONS[self.request_phase].get(kind)
        of_request = allowed is not None
        if allowed is None:
            allowed = TRANSITIONS[self.answer_phase].get(kind)
        if allowed is None:
            self.ignored += 1
            return []
        actions: list[Action] = []
        phase = _HANDLERS[kind](self, event, now, actions)
        if phase not in allowed:
            raise RuntimeError(f"{kind.__name__} leads to {phase}, which its table does not have")
        if not of_request:
            self.answer_phase = phase
            return actions
        self.request_phase = phase
        if phase is _OVER:
            if kind is Closed:
                self._end(now, actions)
                if self.rework is not None and not self.taken:
                    self.refuse_rework()
            self.answer_phase = ResponsePhase.OVER
        return actions

    @property
    def phases(self) -> tuple[RequestPhase, ResponsePhase]:
        """The phases of both halves."""
        return self.request_phase, self.answer_phase

    @property
    def can_be_let_go(self) -> bool:
        """Whether Envoy has the whole request with its decision, and passes the answer alone."""
        return (
            self.request_phase in _WITH_ENVOY
            and self.answer_phase is not ResponsePhase.OVER
            and self.dialect.sends_whole_bodies
            and not (self.rework is not None and self.rework.renames)
        )
