"""The answer's half of a stream: from its headers to its last byte.

Each handler returns the phase that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from laar.core.decision import Decision
from laar.core.request import Api
from laar.protocol import headers as names
from laar.protocol.answers import NameRestorer
from laar.protocol.events import (
    Action,
    AnswerTrailers,
    Direction,
    Ended,
    Noted,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Served,
)
from laar.protocol.stream.answer import Answer, attempted, made_by_envoy, no_answer_error
from laar.protocol.stream.contract_headers import MAX_HEADERS_TO_ADD_TO, headers_of_answer, refusal
from laar.protocol.stream.dialect import DIALECTS
from laar.protocol.stream.phases import ResponsePhase
from laar.protocol.stream.shared import Shared

_WITH_OBJECTS = (Api.MESSAGES, Api.RESPONSES)
"""APIs whose answers hold JSON of the model's or the client's making: arguments of tools, metadata.
The model's is text in events, and in the other APIs."""


class AnswerHalf:
    """The answer, on its way to the client.

    Args:
        shared: state of both halves.
    """

    def __init__(self, shared: Shared) -> None:
        self.phase = ResponsePhase.HEADERS
        self._shared = shared
        self._answer = Answer()
        self._headers: ResponseHeaders | None = None  # while the reservation moves
        self._held_pieces = 0  # that came and are not passed yet, for a name may be cut in two
        self._held = b""  # what they are passed as

    def _response_headers(
        self, event: ResponseHeaders, now: float, out: list[Action]
    ) -> ResponsePhase:
        self._answer.status = event.status
        if event.shape is not None:  # a filter in front of ours has answered the request
            self._shared.dialect = DIALECTS[event.shape]
        decision = self._shared.decision
        if decision is not None and not self._shared.shadow and event.details:
            hurried = now >= self._shared.hurried_at
            if (failed := attempted(decision, event, hurried=hurried)) is not None:
                out.append(failed)
            if made_by_envoy(event):
                return self._unanswered(decision, event, now, out)
        if not self._answer.accepted:
            self._shared.refuse_rework()
        elif self._shared.rework is not None:  # before the client sees it and sends its next turn
            known = (decision.address, decision.request.id) if decision else ("", "")
            decided = decision.id if decision else ""
            self._shared.rework.accepted(event.served or known[0], known[1], now, decision=decided)
            self._shared.taken = True
        if decision is None:
            self._shared.dialect.answer_headers([], event.forged, out, read=False)
            return self._after_headers(event, now, out)
        if event.served and (
            self._shared.shadow or event.attempts > 1 or event.served != decision.address
        ):
            self._headers = event
            out.append(Served(decision, event.served))
            return ResponsePhase.MOVING
        return self._pass_headers(decision, event, now, out)

    def _noted(self, event: Noted, now: float, out: list[Action]) -> ResponsePhase:
        headers, self._headers = self._headers, None
        assert self._shared.decision is not None
        assert headers is not None
        return self._pass_headers(self._shared.decision, headers, now, out)

    def _pass_headers(
        self, decision: Decision, event: ResponseHeaders, now: float, out: list[Action]
    ) -> ResponsePhase:
        shared = self._shared
        if shared.dialect.reads_by_server and not event.end:
            shared.read_answer = shared.read_answer or decision.flight.read or event.status == 503
        read = shared.sees_answer and not event.end
        self._answer.names = (shared.asked, shared.target or "", decision.model)
        if (
            replied := self._answer.replied(
                decision, event, read=read, stored=shared.api is Api.RESPONSES
            )
        ) is not None:
            out.append(replied)
        told: list[tuple[str, str]] = []
        if event.count <= MAX_HEADERS_TO_ADD_TO:
            told = headers_of_answer(
                decision,
                shared.settings.answers,
                shadow=shared.shadow,
                overhead_us=shared.overhead_us,
                since=shared.stamp,
            )
            if shared.settings.conformance_headers:
                told.append((names.TEST_SELECTED, decision.flight.address))
                if event.served:
                    told.append((names.TEST_SERVED, event.served))
        shared.dialect.answer_headers(told, event.forged, out, read=shared.read_answer)
        if shared.target is not None and shared.asked and shared.dialect.shows_answers:
            self._answer.restorer = NameRestorer(
                served=shared.target,
                asked=shared.asked,
                whole=shared.api in _WITH_OBJECTS and not event.streamed,
            )
        return self._after_headers(event, now, out)

    def _after_headers(
        self, event: ResponseHeaders, now: float, out: list[Action]
    ) -> ResponsePhase:
        return self._complete(now, out) if event.end else ResponsePhase.ANSWER

    def _unanswered(
        self, decision: Decision, event: ResponseHeaders, now: float, out: list[Action]
    ) -> ResponsePhase:
        """Answers in Envoy's place, which got no answer from any endpoint."""
        self._shared.refuse_rework()
        self._answer.fail()
        self.end(now, out)
        error = no_answer_error(event, self._shared.asked or decision.model)
        out.append(refusal(error, decision.id))
        return ResponsePhase.OVER

    def _response_body(self, event: ResponseBody, now: float, out: list[Action]) -> ResponsePhase:
        decision, answer, data = self._shared.decision, self._answer, event.data
        if decision is not None:
            out += answer.read(decision, data, end=event.end)
            if data and (answering := answer.progress(decision, now)) is not None:
                out.append(answering)
        phase = self._complete(now, out) if event.end else ResponsePhase.ANSWER
        restorer = answer.restorer
        if restorer is None:
            self._shared.dialect.pass_answer(1, data, out, end=event.end, same=True)
            return phase
        self._held += restorer.feed(data, end=event.end)
        self._held_pieces += 1
        if event.end or not restorer.holds_back:
            self._pass_held(data, out, end=event.end)
        return phase

    def _pass_held(self, last: bytes, out: list[Action], *, end: bool) -> None:
        """Passes all pieces that were waiting for a name to be whole, `last` the last of them."""
        held, pieces, self._held, self._held_pieces = self._held, self._held_pieces, b"", 0
        same = pieces == 1 and held == last
        self._shared.dialect.pass_answer(pieces, held, out, end=end, same=same)

    def _response_trailers(
        self, event: ResponseTrailers, now: float, out: list[Action]
    ) -> ResponsePhase:
        if self._shared.decision is not None:
            out += self._answer.read(self._shared.decision, b"", end=True)
        phase = self._complete(now, out)
        if self._held_pieces and self._answer.restorer is not None:
            self._held += self._answer.restorer.feed(b"", end=True)
            self._pass_held(b"", out, end=False)
        out.append(AnswerTrailers(Direction.RESPONSE))
        return phase

    def _complete(self, now: float, out: list[Action]) -> ResponsePhase:
        self._answer.complete = True
        self.end(now, out)
        return ResponsePhase.OVER

    @property
    def holds_back(self) -> bool:
        """Whether pieces wait for the next one, since a name may be cut in two."""
        return self._held_pieces > 0

    def let_go(self) -> None:
        """The answer's end will not be seen."""
        self._answer.let_go = True

    def end(self, now: float, out: list[Action]) -> None:
        """Reports how the request ended, if one was decided."""
        shared, answer = self._shared, self._answer
        decision = shared.decision
        if decision is None:
            return
        usage = answer.usage()
        if shared.rework is not None and answer.complete:
            shared.rework.ended(answer.ttft_s(decision), usage)
            shared.rework = None
        out.append(Ended(decision, answer.completion(decision, usage, now)))


ANSWER_HANDLERS: Mapping[type, Callable[[AnswerHalf, Any, float, list[Action]], ResponsePhase]] = {
    ResponseHeaders: AnswerHalf._response_headers,
    Noted: AnswerHalf._noted,
    ResponseBody: AnswerHalf._response_body,
    ResponseTrailers: AnswerHalf._response_trailers,
}
"""Handlers by the event that they handle."""
