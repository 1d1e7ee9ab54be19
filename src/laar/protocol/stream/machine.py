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

from laar.core.decision import Decision
from laar.core.request import Trace
from laar.protocol.events import Action, Closed, Event
from laar.protocol.ports import BodyHook, GatewayRules, IsEnforced, NoRules
from laar.protocol.settings import StreamSettings
from laar.protocol.since import Since
from laar.protocol.stream.answer_half import ANSWER_HANDLERS, AnswerHalf
from laar.protocol.stream.body import HeldBytes
from laar.protocol.stream.phases import TRANSITIONS, Phase, RequestPhase, ResponsePhase
from laar.protocol.stream.request_half import REQUEST_HANDLERS, RequestHalf
from laar.protocol.stream.shared import Shared

_NO_RULES = NoRules()
_WITH_ENVOY = (RequestPhase.SENT, RequestPhase.PASSING)
_OVER = RequestPhase.OVER  # to look a member up takes as long as a call
_HANDLERS: Mapping[type, Callable[[Any, Any, float, list[Action]], Phase]] = {
    **REQUEST_HANDLERS,
    **ANSWER_HANDLERS,
}


class Stream:
    """The life of one stream.

    Args:
        settings: limits.
        new_id: makes a request id when the client sent none.
        sampled: decides, at a time, whether the answer is read. Asked of a model's work in the
            native shape: the gateway shape shows every answer anyway.
        enforced: decides whether this request's decision counts; None: it does. One that does not
            is made and recorded, and the request passes as if there were no picker.
        rules: priorities and model rewrites.
        hook: may change request bodies; None leaves all as they are.
        held: counts the bytes that all streams collect in the gateway shape; None sets no limit.
        join: returns the trace that the decision is seen in, by ``traceparent`` and
            ``tracestate``; None when nothing is traced.
        since: returns when a question was first asked; None: every question is new.
        catalog: returns the list of the fleet's models, or of a pool's, or its entry of a name, as
            JSON; None where there is no list. Raises `RequestError` for an unknown name.
    """

    def __init__(
        self,
        settings: StreamSettings,
        *,
        new_id: Callable[[], str],
        sampled: Callable[[float], bool] = lambda _now: False,
        enforced: IsEnforced | None = None,
        rules: GatewayRules = _NO_RULES,
        hook: BodyHook | None = None,
        held: HeldBytes | None = None,
        join: Callable[[str, str], Trace | None] | None = None,
        since: Since | None = None,
        catalog: Callable[[str, str], bytes | None] = lambda _pool, _name: None,
    ) -> None:
        self._shared = Shared(settings, since)
        self._request = RequestHalf(
            self._shared,
            new_id=new_id,
            sampled=sampled,
            enforced=enforced,
            rules=rules,
            hook=hook,
            held=held,
            join=join,
            catalog=catalog,
        )
        self._answer = AnswerHalf(self._shared)
        self.ignored = 0
        """Events that had no entry in the phase in which they came."""

    def receive(self, event: Event, now: float) -> list[Action]:
        """Handles an event; the actions that it causes, in order."""
        kind = type(event)
        half: RequestHalf | AnswerHalf = self._request
        allowed = TRANSITIONS[half.phase].get(kind)
        if allowed is None:
            half = self._answer
            allowed = TRANSITIONS[half.phase].get(kind)
        if allowed is None:
            self.ignored += 1
            return []
        actions: list[Action] = []
        phase = _HANDLERS[kind](half, event, now, actions)
        if phase not in allowed:
            raise RuntimeError(f"{kind.__name__} leads to {phase}, which its table does not have")
        half.phase = phase
        if phase is _OVER:
            if kind is Closed:
                self._answer.end(now, actions)
                if not self._shared.taken:
                    self._shared.refuse_rework()
            self._answer.phase = ResponsePhase.OVER
        return actions

    @property
    def phases(self) -> tuple[RequestPhase, ResponsePhase]:
        """The phases of both halves."""
        return self._request.phase, self._answer.phase

    @property
    def decision(self) -> Decision | None:
        """The decision, once there is one."""
        return self._shared.decision

    @property
    def holds_back(self) -> bool:
        """Whether pieces of the answer wait for the next one."""
        return self._answer.holds_back

    @property
    def can_be_let_go(self) -> bool:
        """Whether Envoy has the whole request with its decision, and every byte of the answer."""
        return (
            self._request.phase in _WITH_ENVOY
            and self._answer.phase is not ResponsePhase.OVER
            and self._shared.dialect.sends_whole_bodies
        )

    def let_go(self) -> None:
        """Takes the end of this stream, which is near, for no end of the answer."""
        self._answer.let_go()

    @property
    def asks_for_answer(self) -> bool:
        """Whether Envoy shows the answer's body on request alone, and is asked for it."""
        return self._shared.asks_for_answer

    @property
    def unspliced(self) -> int:
        """Bodies that went to their endpoint as they came, since they could not be changed."""
        return self._request.unspliced
