"""The state machine of one stream: calls the handlers and checks the phases of `TRANSITIONS`.

`Read` and `Ask` are requests to the driver. Each is the last action in its list, and the driver
feeds the reply (`HasRead`, `Decided` or `Refused`). All other actions are messages to Envoy.

`receive` is eager: when it returns, the event is fully handled, and no state changes while the
driver writes. So the end of a request is recorded before the last message of its answer, after
which Envoy closes the stream, often before the write returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from laar.protocol.events import Action, Closed, Event
from laar.protocol.stream.answer_half import ANSWER_HANDLERS, AnswerHalf
from laar.protocol.stream.phases import TRANSITIONS, RequestPhase, ResponsePhase
from laar.protocol.stream.request_half import REQUEST_HANDLERS, RequestHalf

_WITH_ENVOY = (RequestPhase.SENT, RequestPhase.PASSING)
_OVER = RequestPhase.OVER  # looking up an enum member costs as much as a call
_HANDLERS: Mapping[type, Callable[[Any, Any, float, list[Action]], Any]] = {
    **REQUEST_HANDLERS,
    **ANSWER_HANDLERS,
}


class Stream(RequestHalf, AnswerHalf):
    """One stream; its argument is that of `StreamState`."""

    ignored = 0
    """Number of events that were ignored because the current phase has no entry for them."""

    def receive(self, event: Event, now: float) -> list[Action]:
        """Handle an event; return the resulting actions in order."""
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
            raise RuntimeError(f"{kind.__name__} leads to {phase}, which `TRANSITIONS` forbids")
        if not of_request:
            self.answer_phase = phase
            return actions
        self.request_phase = phase
        if phase is _OVER:
            if kind is Closed:
                self._end(now)
                if self.rework is not None and not self.answer.accepted:
                    self.refuse_rework()
            self.answer_phase = ResponsePhase.OVER
        return actions

    @property
    def can_be_let_go(self) -> bool:
        """Whether Envoy has the whole request and decision, and can pass the answer by itself."""
        return (
            self.request_phase in _WITH_ENVOY
            and self.answer_phase is not ResponsePhase.OVER
            and self.dialect.keeps_bodies
            and not (self.rework is not None and self.rework.renames)
        )
