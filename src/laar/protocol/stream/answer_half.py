"""The response half of a stream, from the headers to the last byte.

Each handler returns the next phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from laar.core.attempts import RESENT_BYTES
from laar.core.decision import Decision
from laar.core.plugin import gather
from laar.errors import RequestError
from laar.protocol import agreed
from laar.protocol import headers as names
from laar.protocol.answers import MAX_ANSWER_BYTES, name_restorer
from laar.protocol.events import (
    Action,
    AnswerTrailers,
    Direction,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from laar.protocol.stream.answer import EXPLAINED, failed_attempts, no_answer_error
from laar.protocol.stream.contract_headers import (
    MAX_HEADERS_TO_ADD_TO,
    headers_of_answer,
    refusal,
    retry_after,
)
from laar.protocol.stream.dialect import OF_OTHERS
from laar.protocol.stream.phases import ResponsePhase
from laar.protocol.stream.state import StreamState

_NO_SOCKET = (400, 403, 404, 405, 426, 500, 501)
"""Statuses with which servers refuse to open a WebSocket that they don't have; uvicorn: 403."""
_ASK_PLAINLY = RequestError(
    426, "no-websocket", "the endpoint opens no WebSocket here: ask over plain HTTP"
)


class AnswerHalf(StreamState):
    """The handlers of the response half."""

    answer_phase = ResponsePhase.HEADERS
    held_chunks = 0
    """Number of chunks that are held because a name may be split across them."""
    _held = b""
    """The bytes of the held chunks, as received."""
    _holds_all = False
    """Whether the answer is restored as a whole; otherwise each line is."""

    def _response_headers(
        self, event: ResponseHeaders, now: float, out: list[Action]
    ) -> ResponsePhase:
        answer, decision, status = self.answer, self.decision, event.status
        self.env.tickets.pop(self.ticket, None)
        answer.status = status
        answer.accepted = status is not None and 200 <= status < 300
        if event.shape is not None:  # an earlier filter has answered the request
            self.dialect = OF_OTHERS[event.shape]
        if (
            (event.attempts > 1 or event.details != agreed.FROM_ENDPOINT)
            and decision is not None
            and not self.shadow
            and event.details
        ):
            hurried = now >= self.hurried_at
            if failed := failed_attempts(decision, event, hurried=hurried):
                self.env.recorder.attempted(decision, failed, now)
            if event.details != agreed.FROM_ENDPOINT:
                if status is not None and status >= 500:
                    return self._unanswered(decision, event, now, out)
                answer.fail()  # the gateway refuses the request: its limit, its rules
        if self.rework is not None:
            if answer.accepted:  # record it before the client sends the next turn
                address = event.served or (decision.address if decision else "")
                self.rework.accepted(address, now)
                restorer = self.rework.restorer(events=event.streamed, encoded=event.encoded)
                if restorer is not None:
                    answer.restorers, self._holds_all = (restorer,), not event.streamed
                    event.forged += ("content-length",)  # the body's length will change
            else:
                self.refuse_rework()
        if decision is None:
            tells = self.begun and self.env.settings.answers is not names.Answers.NONE
            told = [(names.REASON, names.FAILED_OPEN)] if tells else []
            self.dialect.answer_headers(told, event.forged, out, read=False)
            return self._complete(now) if event.end else ResponsePhase.ANSWER
        if self.may_ask_plainly and status in _NO_SOCKET and not self.shadow:
            self._end(now)
            out.append(refusal(_ASK_PLAINLY, decision.request.id, decision.id))
            return ResponsePhase.OVER
        if event.served and (self.shadow or event.attempts > 1 or event.served != decision.address):
            self.env.recorder.served(decision, event.served, now)  # first: our headers name it
        return self._pass_headers(decision, event, now, out)

    def _pass_headers(
        self, decision: Decision, event: ResponseHeaders, now: float, out: list[Action]
    ) -> ResponsePhase:
        dialect, answer, settings = self.dialect, self.answer, self.env.settings
        # With kept headers, an answer may still be chosen for reading once its endpoint is known.
        if dialect.keeps_headers and not dialect.shows_answers and not event.end:
            explained = event.status in EXPLAINED
            self.read_answer = self.read_answer or decision.flight.read or explained
        read = (self.read_answer or dialect.shows_answers) and not event.end
        own = decision.flight.variant_of or decision.model
        answer.names = (self.asked, self.target or "", own)
        reply = answer.replied(decision, event, read=read, stored=self.stores_answer)
        is_text = not event.encoded and (event.streamed or "json" in event.media_type)
        restores = settings.restore_names and dialect.shows_answers and is_text
        if self.target is not None and self.asked and restores:
            # An answer to a streaming request that says it is JSON may still be lines.
            whole = event.media_type == "application/json" and not decision.request.stream
            restorer = name_restorer(served=self.target, asked=self.asked, whole=whole)
            answer.restorers += (restorer,)
            self._holds_all |= whole
            event.forged += ("content-length",)  # the body's length will change
        headers: list[tuple[str, str]] = []
        if event.count <= MAX_HEADERS_TO_ADD_TO:
            headers = headers_of_answer(
                decision,
                settings.answers,
                shadow=self.shadow,
                overhead_us=self.overhead_us,
                held_s=self.held_s,
                ignored=self.ignored_header,
            )
            if decision.parts:
                headers += chain.from_iterable(gather(decision, "answers", now))
            if settings.conformance_headers:
                headers.append((names.TEST_SELECTED, decision.flight.address))
                if event.served:
                    headers.append((names.TEST_SERVED, event.served))
            may_add = not (answer.accepted or self.shadow)
            if may_add and (again_s := retry_after(decision, event, acts=self.acts)):
                headers.append((names.RETRY_AFTER, again_s))
        if decision.request.needs_model and event.status == 101:
            self._end(now)  # an open WebSocket is no load, and its messages are not seen
        dialect.answer_headers(headers, event.forged, out, read=self.read_answer)
        if reply is not None:
            self.env.recorder.replied(decision, reply, now, read=read)
        return self._complete(now) if event.end else ResponsePhase.ANSWER

    def _unanswered(
        self, decision: Decision, event: ResponseHeaders, now: float, out: list[Action]
    ) -> ResponsePhase:
        """Replace the answer that Envoy generated because no endpoint answered."""
        self.refuse_rework()
        self.answer.fail()
        self._end(now)
        repeats = not self.acts and self.body.size_bytes <= RESENT_BYTES
        error = no_answer_error(event, decision.model, repeats=repeats)
        out.append(refusal(error, decision.request.id, decision.id))
        return ResponsePhase.OVER

    def _response_body(self, event: ResponseBody, now: float, out: list[Action]) -> ResponsePhase:
        decision, answer, data = self.decision, self.answer, event.data
        end = event.end or self.dialect.sends_whole_answers  # trailers may follow
        if decision is not None:
            answer.read(decision, data, now, self.env.recorder, end=end)
        if end:
            self._complete(now)
        phase = ResponsePhase.OVER if event.end else ResponsePhase.ANSWER
        if not answer.restorers:
            self.dialect.pass_answer(1, data, out, end=end, same=True)
            return phase
        self._held += data
        self.held_chunks += 1
        is_whole = not self._held or (data.endswith((b"\n", b"\r")) and not self._holds_all)
        if end or is_whole or len(self._held) > MAX_ANSWER_BYTES:
            self._pass_held(out, end=end)
        return phase

    def _pass_held(self, out: list[Action], *, end: bool) -> None:
        """Pass on all held chunks, restored."""
        made = held = self._held
        for restored in self.answer.restorers:
            made = restored(made)
        chunks, self._held, self.held_chunks = self.held_chunks, b"", 0
        self.dialect.pass_answer(chunks, made, out, end=end, same=chunks == 1 and made == held)

    def _response_trailers(
        self, event: ResponseTrailers, now: float, out: list[Action]
    ) -> ResponsePhase:
        if self.decision is not None:
            self.answer.read(self.decision, b"", now, self.env.recorder, end=True)
        phase = self._complete(now)
        if self.held_chunks:
            self._pass_held(out, end=False)
        out.append(AnswerTrailers(Direction.RESPONSE))
        return phase

    def _complete(self, now: float) -> ResponsePhase:
        self.answer.complete = True
        self._end(now)
        return ResponsePhase.OVER

    def _end(self, now: float) -> None:
        """Record how the request ended, if there was a decision."""
        answer, decision = self.answer, self.decision
        if decision is None:
            return
        end = answer.completion(decision, now, self.env.recorder)
        if self.rework is not None and answer.complete:
            self.rework.ended(end)
            self.rework = None
        self.env.recorder.ended(decision, end)


ANSWER_HANDLERS: Mapping[type, Callable[[AnswerHalf, Any, float, list[Action]], ResponsePhase]] = {
    ResponseHeaders: AnswerHalf._response_headers,
    ResponseBody: AnswerHalf._response_body,
    ResponseTrailers: AnswerHalf._response_trailers,
}
"""Handlers by event type."""
