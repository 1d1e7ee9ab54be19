"""The machine of one stream. It moves through the phases of `TRANSITIONS`, and decides nothing.

It asks instead: `Read`, `Ask` and `Served` are questions, each the last action of its list, and the
driver feeds the answer (`HasRead`, `Decided` or `Refused`, `Noted`). All other actions are messages
to Envoy, or notes to the driver.

`receive` is eager: when it returns, the machine is done with the event, and nothing of it moves
while the driver writes. `Ended` is noted before the last message of an answer, since Envoy closes
the stream on getting that one, often before writing it has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laar.core.decision import Decision
from laar.core.request import Api, Request, Trace
from laar.errors import RequestError
from laar.protocol import headers as names
from laar.protocol.answers import NameRestorer
from laar.protocol.events import (
    Action,
    AnswerTrailers,
    Ask,
    Closed,
    Decided,
    Direction,
    Ended,
    Event,
    Failed,
    HasRead,
    Immediate,
    Noted,
    Read,
    Refused,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Served,
    WholeRequest,
)
from laar.protocol.openai import ASIDE_BYTES, Body, api_of, set_priority, splice_model, try_read
from laar.protocol.paths import denied_path_error
from laar.protocol.ports import BodyHook, GatewayRules, IsEnforced, NoRules, Rework
from laar.protocol.settings import StreamSettings
from laar.protocol.since import Since
from laar.protocol.stream.answer import Answer, attempted, made_by_envoy, no_answer_error
from laar.protocol.stream.body import Collected, HeldBytes, send_pieces
from laar.protocol.stream.dialect import DIALECTS, KEPT_HEADERS, NATIVE
from laar.protocol.stream.phases import TRANSITIONS, Phase, RequestPhase, ResponsePhase
from laar.protocol.stream.request import NOTHING_READ, forget_prompt, request_of
from laar.protocol.stream.sending import Sending, destinations, silence_s
from laar.protocol.stream.told import (
    MAX_HEADER_BYTES_TO_ADD_TO,
    MAX_HEADERS_TO_ADD_TO,
    headers_of_answer,
    refusal,
)

__all__ = ["Stream"]

_NO_RULES = NoRules()
_NO_HEAD = names.read_head({})
_UNANSWERED = (
    RequestPhase.HEADERS,
    RequestPhase.BODY,
    RequestPhase.READING,
    RequestPhase.DECIDING,
)


class Stream:
    """The life of one stream.

    Args:
        settings: limits.
        read_answer: whether this request is sampled: its answer's body is read in the native shape.
            (The gateway shape shows every answer anyway.)
        new_id: makes a request id when the client sent none.
        enforced: says whether this request's decision counts; None: it does. One that does not is
            made and recorded, and the request passes as if there were no picker.
        rules: priorities and model rewrites.
        hook: may change request bodies; None leaves all as they are.
        held: counts what all streams collect in the gateway shape; None sets no limit.
        join: returns the trace that the decision is seen in, by ``traceparent`` and
            ``tracestate``; None when nothing is traced.
        since: knows when a question was first asked; None: every question is new.
        catalog: returns the list of the fleet's models, or of a pool's, as JSON; None where there
            is no list.
    """

    def __init__(
        self,
        settings: StreamSettings,
        *,
        read_answer: bool,
        new_id: Callable[[], str],
        enforced: IsEnforced | None = None,
        rules: GatewayRules = _NO_RULES,
        hook: BodyHook | None = None,
        held: HeldBytes | None = None,
        join: Callable[[str, str], Trace | None] | None = None,
        since: Since | None = None,
        catalog: Callable[[str], bytes | None] = lambda _pool: None,
    ) -> None:
        self._settings = settings
        self._read_answer = read_answer
        self._new_id = new_id
        self._enforced = enforced
        self._rules = rules
        self._hook = hook
        self._join = join
        self._since = since
        self._catalog = catalog
        self._asked_at = 0.0
        self._request = RequestPhase.HEADERS
        self._response = ResponsePhase.HEADERS
        self._dialect = NATIVE
        self._head = _NO_HEAD
        self._id = ""
        self._begun = False
        self._room_for_headers = True
        self._api = Api.OPAQUE
        self._subset: frozenset[str] | None = None
        self._pool = ""
        self._attempts = 0
        self._body = Collected(held)
        self._asked = ""  # the model's name in the client's body
        self._model_span: tuple[int, int] | None = None
        self._rework: Rework | None = None
        self._taken = False  # an endpoint has accepted the request
        self._shadow = False
        self._decision: Decision | None = None
        self._overhead_us = 0
        self._target: str | None = None  # the name that took its place
        self._answer = Answer()
        self._answer_headers: ResponseHeaders | None = None  # while the reservation moves
        self.ignored = 0
        """Events that had no entry in the phase in which they came."""
        self.unspliced = 0
        """Bodies that went to their endpoint as they came, since they could not be changed."""

    def receive(self, event: Event, now: float) -> list[Action]:
        """Handles an event; the actions that it causes, in order."""
        kind = type(event)
        allowed = TRANSITIONS[self._request].get(kind) or TRANSITIONS[self._response].get(kind)
        if allowed is None:
            self.ignored += 1
            return []
        actions: list[Action] = []
        phase = _HANDLERS[kind](self, event, now, actions)
        assert phase in allowed, f"{kind.__name__} leads to {phase}"
        if isinstance(phase, ResponsePhase):
            self._response = phase
        else:
            self._request = phase
            if phase is RequestPhase.OVER:
                self._response = ResponsePhase.OVER
        return actions

    @property
    def phases(self) -> tuple[RequestPhase, ResponsePhase]:
        """Where both halves stand."""
        return self._request, self._response

    @property
    def decision(self) -> Decision | None:
        """The decision, once there is one."""
        return self._decision

    @property
    def only_watches(self) -> bool:
        """Whether nothing is expected of this stream any more but to see its end."""
        return self._response is ResponsePhase.ANSWER and not self._sees_answer

    @property
    def _sees_answer(self) -> bool:
        return self._read_answer or self._dialect.shows_answers

    # -- the request, up to the question -----------------------------------------------------------

    def _request_headers(self, event: RequestHeaders, now: float, out: list[Action]) -> Phase:
        self._dialect = DIALECTS[event.shape]
        self._room_for_headers = (
            event.count <= MAX_HEADERS_TO_ADD_TO and event.size_bytes <= MAX_HEADER_BYTES_TO_ADD_TO
        )
        self._body.whole = event.end
        self._begin(event, now)
        path = self._head.path
        if path in self._settings.denied:
            self._shadow = False  # no engine is to see it, wherever it is chosen
            return self._refuse(denied_path_error(), out)
        if self._head.method == "POST" and event.headers.get("upgrade", "").lower() == "websocket":
            # Some engines answer it as a plain POST, whose body was not read then.
            return self._refuse(RequestError(400, "bad-request", "a POST upgrades nothing"), out)
        if event.end and self._wants_list() and (listed := self._catalog(self._pool)) is not None:
            out.append(Immediate(200, [("content-type", "application/json")], listed))
            return RequestPhase.OVER
        if event.end or path.startswith(self._settings.opaque_paths) or self._head.upgrade:
            self._api = Api.OPAQUE
            return self._ask(NOTHING_READ, now, out)
        self._dialect.await_body(out)
        return RequestPhase.BODY

    def _wants_list(self) -> bool:
        """Whether the request is for the models of the whole fleet, or of a pool."""
        path, _, _ = self._head.path.partition("?")
        return (
            self._head.method == "GET"
            and path.rstrip("/") == "/v1/models"
            and self._settings.list_models
            and self._subset is None
            and not self._shadow
        )

    def _whole_request(self, event: WholeRequest, now: float, out: list[Action]) -> Phase:
        self._dialect = KEPT_HEADERS
        self._begin(event, now)
        return self._request_body(RequestBody(event.data, True), now, out)

    def _begin(self, event: RequestHeaders | WholeRequest, now: float) -> None:
        """Reads the headers, and settles what depends on them alone."""
        self._begun = True
        self._subset = event.subset
        self._pool = event.pool
        self._attempts = event.attempts
        self._head = names.read_head(event.headers, self._settings.tenant_header)
        self._id = self._head.id or self._new_id()
        self._api = api_of(self._head.path)
        if self._api is Api.OPAQUE:
            for name in names.ORIGINAL_PATHS:  # the gateway may have rewritten the path
                self._api = api_of(event.headers.get(name, ""))
                if self._api is not Api.OPAQUE:
                    break
        if self._settings.conformance_headers:
            self._select_for_test(event.headers.get(names.TEST_SELECTION, ""))
        if self._api is Api.RESPONSES:  # which engine keeps the answer is to be learned
            self._read_answer = True
        if self._enforced is not None:
            self._shadow = not self._enforced(self._head.session or self._id)
        if self._api is Api.OPAQUE:
            self._read_answer = False  # nothing is learned from it
        elif self._hook is not None and not self._read_answer:
            self._read_answer = self._hook.reads_answer(self._head, now)

    def _select_for_test(self, value: str) -> None:
        """Narrows the choice to the endpoints that a conformance test names."""
        wanted = names.read_subset(value) if value else None
        if wanted is not None:
            self._subset = wanted if self._subset is None else self._subset & wanted

    def _request_body(self, event: RequestBody, now: float, out: list[Action]) -> Phase:
        body = self._body
        if self._request is RequestPhase.PASSING:
            self._dialect.pass_on(Direction.REQUEST, event.data, out, end=event.end)
            return RequestPhase.SENT if event.end else RequestPhase.PASSING
        if self._subset is None:
            self._subset = event.subset
        body.add(event.data)
        body.whole = event.end or self._dialect.sends_whole_bodies
        limit = self._settings.max_body_bytes
        if body.size_bytes > limit:
            error = RequestError(413, "body-too-large", f"the body is longer than {limit} bytes")
            return self._refuse(error, out)
        if body.whole:
            return self._read_body(now, out)
        if not body.hold(len(event.data)):
            error = RequestError(
                503,
                "bodies-full",
                "the picker holds as many unfinished bodies as bodies.max_held_bytes allows",
                retry_after_s=1,
            )
            return self._refuse(error, out)
        return RequestPhase.BODY

    def _request_trailers(self, event: RequestTrailers, now: float, out: list[Action]) -> Phase:
        if self._request is RequestPhase.PASSING:
            out.append(AnswerTrailers(Direction.REQUEST))
            return RequestPhase.SENT
        self._body.trailers = True
        return self._read_body(now, out)

    def _read_body(self, now: float, out: list[Action]) -> Phase:
        body = self._body.complete()
        if len(body) > ASIDE_BYTES:
            out.append(Read(self._api, body))
            return RequestPhase.READING
        return self._has_read(HasRead(try_read(self._api, body)), now, out)

    def _has_read(self, event: HasRead, now: float, out: list[Action]) -> Phase:
        read = event.read
        if not isinstance(read, RequestError) and self._hook is not None:
            read = self._reworked(self._hook, read, now)
        if isinstance(read, RequestError):
            return self._refuse(read, out)
        return self._ask(read, now, out)

    def _reworked(self, hook: BodyHook, read: Body, now: float) -> Body | RequestError:
        """Lets the hook look at the body; the body as read again if it was changed."""
        body = self._body.complete()
        if self._api is Api.OPAQUE or not read.spans:
            return read
        rework = self._rework = hook.apply(
            body,
            api=self._api,
            model=read.model,
            head=self._head,
            may_change=not self._shadow,
            now=now,
        )
        if rework is None or rework.body is body:
            return read
        self._body.replace(rework.body)
        return try_read(self._api, rework.body)

    def _ask(self, read: Body, now: float, out: list[Action]) -> Phase:
        head = self._head
        self._asked, self._model_span = read.model, read.model_span
        request = request_of(
            head,
            read,
            request_id=self._id,
            api=self._api,
            rules=self._rules,
            body_bytes=self._body.size_bytes,
            salt_by_tenant=self._settings.by_tenant,
            pool=self._pool,
            subset=self._subset,
            shadow=self._shadow,
            sees_answer=self._sees_answer,
            trace=self._join(head.trace_parent, head.trace_state) if self._join else None,
        )
        if self._rework is not None:
            request.context = self._rework.context
            self._rework.asked(self._id, now)
        if self._since is not None:
            request.waited_s = self._since.waited_s(head.since, request, now)
            self._asked_at = now
        out.append(Ask(request))
        return RequestPhase.DECIDING

    # -- the request, from the decision on ---------------------------------------------------------

    def _decided(self, event: Decided, now: float, out: list[Action]) -> Phase:
        decision = self._decision = event.decision
        forget_prompt(decision.request)
        self._overhead_us = event.overhead_us
        if self._shadow:
            return self._stand_aside(out)
        came = self._body
        body, changed = came.data, came.changed
        if body is not None:
            fitted = self._fitted(decision, body)
            body, changed = fitted, changed or fitted is not body
        sending = Sending(
            ",".join(destinations(decision, self._attempts)),
            silence_s(decision),
            self._head,
            decision.request.id,
            self._room_for_headers,
            body,
            changed,
            came.whole,
            came.trailers,
        )
        self._dialect.send(sending, out)
        came.take()  # not before: after a fault it goes on as it came
        return RequestPhase.SENT if came.whole else RequestPhase.PASSING

    def _fitted(self, decision: Decision, body: bytes) -> bytes:
        """The body as the endpoint takes it; the same object where nothing is to change."""
        target = decision.rewrite or decision.request.model
        try:
            if target != self._asked:
                body = splice_model(body, target, self._model_span)
                self._target = target
            if decision.engine_priority is not None:
                body = set_priority(body, decision.engine_priority)
        except (ValueError, RequestError):  # the destination stays: it may not be any other
            self.unspliced += 1
        return body

    def _refused(self, event: Refused, now: float, out: list[Action]) -> Phase:
        return self._refuse(event.error, out)

    def _refuse(self, error: RequestError, out: list[Action]) -> Phase:
        if self._shadow:
            return self._stand_aside(out)
        self._refused_rework()
        self._body.take()
        out.append(refusal(error))
        return RequestPhase.OVER

    def _stand_aside(self, out: list[Action]) -> Phase:
        """Lets the request go on as it came."""
        self._dialect.stand_aside(self._body, out)
        return RequestPhase.SENT if self._body.whole else RequestPhase.PASSING

    def _failed(self, event: Failed, now: float, out: list[Action]) -> Phase:
        """The request goes on as it came; nothing if it is too late.

        It is refused instead where the gateway's route restricts it to a pool or a subset: without
        a destination Envoy takes any endpoint, of any pool.

        In the gateway shape Envoy keeps no copy of a body, and takes a stream that just ends for
        the end of the body.
        """
        if not self._begun or self._request not in _UNANSWERED:
            return self._request
        if (self._pool or self._subset is not None) and not self._shadow:
            error = RequestError(
                503,
                "picker-fault",
                "the picker failed, and may not pass the request to any endpoint at all",
                retry_after_s=1,
            )
            return self._refuse(error, out)
        self._shadow = True
        return self._stand_aside(out)

    # -- the answer --------------------------------------------------------------------------------

    def _response_headers(self, event: ResponseHeaders, now: float, out: list[Action]) -> Phase:
        self._answer.status = event.status
        if event.shape is not None:  # a filter in front of ours has answered the request
            self._dialect = DIALECTS[event.shape]
        decision = self._decision
        if decision is not None and not self._shadow and event.details:
            if (failed := attempted(decision, event)) is not None:
                out.append(failed)
            if made_by_envoy(event):
                return self._unanswered(decision, event, now, out)
        if not self._answer.accepted:
            self._refused_rework()
        elif self._rework is not None:  # before the client sees it and sends its next turn
            known = (decision.address, decision.request.id) if decision else ("", "")
            decided = decision.id if decision else ""
            self._rework.accepted(event.served or known[0], known[1], now, decision=decided)
            self._taken = True
        if decision is None:
            self._dialect.answer_headers([], out, read=False)
            return self._after_headers(event, now, out)
        if event.served and (
            self._shadow or event.attempts > 1 or event.served != decision.address
        ):
            self._answer_headers = event
            out.append(Served(decision, event.served))
            return ResponsePhase.MOVING
        return self._pass_headers(decision, event, now, out)

    def _noted(self, event: Noted, now: float, out: list[Action]) -> Phase:
        headers, self._answer_headers = self._answer_headers, None
        assert self._decision is not None
        assert headers is not None
        return self._pass_headers(self._decision, headers, now, out)

    def _pass_headers(
        self, decision: Decision, event: ResponseHeaders, now: float, out: list[Action]
    ) -> Phase:
        if self._dialect.reads_by_server and not event.end:
            self._read_answer = self._read_answer or decision.flight.read or event.status == 503
        read = self._sees_answer and not event.end
        if (
            replied := self._answer.replied(
                decision, event, read=read, stored=self._api is Api.RESPONSES
            )
        ) is not None:
            out.append(replied)
        told: list[tuple[str, str]] = []
        if event.count <= MAX_HEADERS_TO_ADD_TO:
            told = headers_of_answer(
                decision,
                self._settings.answers,
                shadow=self._shadow,
                overhead_us=self._overhead_us,
                since=self._stamp,
            )
            if self._settings.conformance_headers:
                told.append((names.TEST_SELECTED, decision.flight.address))
                if event.served:
                    told.append((names.TEST_SERVED, event.served))
        self._dialect.answer_headers(told, out, read=self._read_answer)
        if self._target is not None and self._dialect.shows_answers:
            self._answer.restorer = NameRestorer(served=self._target, asked=self._asked)
        return self._after_headers(event, now, out)

    def _stamp(self, request: Request) -> str:
        """When the question was first asked, for a retry to send back."""
        return "" if self._since is None else self._since.stamp(request, self._asked_at)

    def _after_headers(self, event: ResponseHeaders, now: float, out: list[Action]) -> Phase:
        return self._complete(now, out) if event.end else ResponsePhase.ANSWER

    def _unanswered(
        self, decision: Decision, event: ResponseHeaders, now: float, out: list[Action]
    ) -> Phase:
        """Answers in Envoy's place, which got no answer from any endpoint."""
        self._refused_rework()
        self._answer.fail()
        self._end(now, out)
        error = no_answer_error(event, self._asked or decision.model)
        out.append(refusal(error, decision.id))
        return ResponsePhase.OVER

    def _response_body(self, event: ResponseBody, now: float, out: list[Action]) -> Phase:
        decision, answer, data = self._decision, self._answer, event.data
        if decision is not None and data:
            if (replied := answer.look_for_error(decision, data)) is not None:
                out.append(replied)
            if (answering := answer.first_byte(decision, now)) is not None:
                out.append(answering)
        answer.read(data)
        phase = self._complete(now, out) if event.end else ResponsePhase.ANSWER
        data = answer.restored(data, end=event.end)
        self._dialect.pass_on(Direction.RESPONSE, data, out, end=event.end)
        return phase

    def _response_trailers(self, event: ResponseTrailers, now: float, out: list[Action]) -> Phase:
        phase = self._complete(now, out)
        if held_back := self._answer.restored(b"", end=True):
            send_pieces(Direction.RESPONSE, held_back, end=False, out=out)
        out.append(AnswerTrailers(Direction.RESPONSE))
        return phase

    def _complete(self, now: float, out: list[Action]) -> Phase:
        self._answer.complete = True
        self._end(now, out)
        return ResponsePhase.OVER

    # -- the end -----------------------------------------------------------------------------------

    def _closed(self, event: Closed, now: float, out: list[Action]) -> Phase:
        self._body.take()
        self._end(now, out)
        if not self._taken:
            self._refused_rework()
        return RequestPhase.OVER

    def _refused_rework(self) -> None:
        """No endpoint took what the hook made of the body."""
        if self._rework is not None:
            self._rework.refused()
            self._rework = None

    def _end(self, now: float, out: list[Action]) -> None:
        decision, answer = self._decision, self._answer
        if decision is None:
            return
        usage = answer.usage()
        if self._rework is not None and answer.complete:
            self._rework.ended(answer.ttft_s(decision), usage)
            self._rework = None
        out.append(Ended(decision, answer.completion(decision, usage, now)))


_Handler = Callable[[Stream, Any, float, list[Action]], Phase]

_HANDLERS: dict[type, _Handler] = {
    RequestHeaders: Stream._request_headers,
    WholeRequest: Stream._whole_request,
    RequestBody: Stream._request_body,
    RequestTrailers: Stream._request_trailers,
    HasRead: Stream._has_read,
    Decided: Stream._decided,
    Refused: Stream._refused,
    Failed: Stream._failed,
    ResponseHeaders: Stream._response_headers,
    Noted: Stream._noted,
    ResponseBody: Stream._response_body,
    ResponseTrailers: Stream._response_trailers,
    Closed: Stream._closed,
}
