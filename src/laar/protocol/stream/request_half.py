"""The request's half of a stream: its messages from Envoy, the decision, and the request sent on.

Each handler returns the phase that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from laar.core.decision import Decision
from laar.core.request import Api, Trace
from laar.errors import RequestError
from laar.protocol import headers as names
from laar.protocol.events import (
    Action,
    AnswerTrailers,
    Ask,
    Closed,
    Decided,
    Direction,
    Failed,
    HasRead,
    Immediate,
    Read,
    Refused,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    WholeRequest,
)
from laar.protocol.openai import ASIDE_BYTES, Body, api_of, model_of, try_read
from laar.protocol.paths import denied_path_error
from laar.protocol.ports import BodyHook, GatewayRules, IsEnforced
from laar.protocol.splice import splice_model
from laar.protocol.stream.body import Collected, HeldBytes
from laar.protocol.stream.contract_headers import (
    MAX_HEADER_BYTES_TO_ADD_TO,
    MAX_HEADERS_TO_ADD_TO,
    refusal,
)
from laar.protocol.stream.dialect import DIALECTS, KEPT_HEADERS
from laar.protocol.stream.phases import RequestPhase
from laar.protocol.stream.request import forget_prompt, request_of
from laar.protocol.stream.sending import Sending, destinations, patience
from laar.protocol.stream.shared import Shared

_NO_HEAD = names.read_head({})
_OPAQUE = Api.OPAQUE
_MAX_DIGITS = 20
"""Digits of a length in bytes; Python refuses to read thousands."""

_UNANSWERED = (
    RequestPhase.HEADERS,
    RequestPhase.BODY,
    RequestPhase.READING,
    RequestPhase.DECIDING,
)


class RequestHalf:
    """The request, on its way to an endpoint.

    The arguments are `Stream`'s, but for `shared`, the state of both halves.
    """

    def __init__(
        self,
        shared: Shared,
        *,
        new_id: Callable[[], str],
        sampled: Callable[[float], bool],
        enforced: IsEnforced | None,
        rules: GatewayRules,
        hook: BodyHook | None,
        held: HeldBytes | None,
        join: Callable[[str, str], Trace | None] | None,
        catalog: Callable[[str, str], bytes | None],
    ) -> None:
        self.phase = RequestPhase.HEADERS
        self._shared = shared
        self._new_id = new_id
        self._sampled = sampled
        self._enforced = enforced
        self._rules = rules
        self._hook = hook
        self._join = join
        self._catalog = catalog
        self._head = _NO_HEAD
        self._id = ""
        self._begun = False
        self._room_for_headers = True
        self._subset: frozenset[str] | None = None
        self._pool = ""
        self._attempts = 0
        self._body = Collected(held)
        self._model_span: tuple[int, int] | None = None
        self.unspliced = 0

    # -- up to the question ------------------------------------------------------------------------

    def _request_headers(
        self, event: RequestHeaders, now: float, out: list[Action]
    ) -> RequestPhase:
        self._shared.dialect = DIALECTS[event.shape]
        self._room_for_headers = (
            event.count <= MAX_HEADERS_TO_ADD_TO and event.size_bytes <= MAX_HEADER_BYTES_TO_ADD_TO
        )
        self._body.whole = event.end
        self._begin(event, now)
        if (refused := self._refuse_denied(out)) is not None:
            return refused
        if self._head.method == "POST" and event.headers.get("upgrade", "").lower() == "websocket":
            # Some engines answer it as a plain POST, whose body was not read then.
            return self._refuse(RequestError(400, "bad-request", "a POST upgrades nothing"), out)
        if event.end and (phase := self._list_models(out)) is not None:
            return phase
        if event.end or self._is_opaque() or self._head.upgrade:
            return self._ask_unread(now, out)
        if self._announces_too_much(event.headers):
            return self._refuse_long(out)
        self._shared.dialect.await_body(out)
        return RequestPhase.BODY

    def _list_models(self, out: list[Action]) -> RequestPhase | None:
        """Answers for the models of the fleet or a pool, or for one; None for other requests."""
        head, name = self._head, model_of(self._head.path)
        path, _, _ = head.path.partition("?")
        if (
            head.method != "GET"
            or not path.startswith("/v1/models")
            or not (name or path.rstrip("/") == "/v1/models")
            or not self._shared.settings.list_models
            or self._subset is not None
            or self._shared.shadow
        ):
            return None
        try:
            listed = self._catalog(self._pool, name)
        except RequestError as error:
            return self._refuse(error, out)
        if listed is None:
            return None
        out.append(Immediate(200, [("content-type", "application/json")], listed))
        return RequestPhase.OVER

    def _whole_request(self, event: WholeRequest, now: float, out: list[Action]) -> RequestPhase:
        self._shared.dialect = KEPT_HEADERS[event.shape]
        self._begin(event, now)
        if (refused := self._refuse_denied(out)) is not None:
            return refused
        if self._is_opaque():
            self._body.whole = True
            return self._ask_unread(now, out)
        return self._request_body(RequestBody(event.data, True), now, out)

    def _refuse_denied(self, out: list[Action]) -> RequestPhase | None:
        """Refuses a path that is for an engine's operators; None for all others."""
        if self._head.path not in self._shared.settings.denied:
            return None
        self._shared.shadow = False  # no engine is to see it, wherever it is chosen
        return self._refuse(denied_path_error(), out)

    def _is_opaque(self) -> bool:
        """Whether the settings leave the path's bodies unread."""
        return self._head.path.startswith(self._shared.settings.opaque_paths)

    def _announces_too_much(self, headers: Mapping[str, str]) -> bool:
        """Whether the headers announce a body beyond the limit: it is refused before it comes."""
        length = headers.get("content-length", "")
        return (
            length.isdecimal()
            and len(length) < _MAX_DIGITS
            and int(length) > self._shared.settings.max_body_bytes
        )

    def _refuse_long(self, out: list[Action]) -> RequestPhase:
        """Refuses a body beyond the limit: unread, it might go to any model."""
        limit = self._shared.settings.max_body_bytes
        error = RequestError(413, "body-too-large", f"the body is longer than {limit} bytes")
        return self._refuse(error, out)

    def _ask_unread(self, now: float, out: list[Action]) -> RequestPhase:
        """Asks for an endpoint by the headers alone."""
        self._shared.api = _OPAQUE
        return self._ask(Body(model=model_of(self._head.path)), now, out)

    def _begin(self, event: RequestHeaders | WholeRequest, now: float) -> None:
        """Reads the headers, and settles the steps that depend on them alone."""
        self._begun = True
        self._subset = event.subset
        self._pool = event.pool
        self._attempts = event.attempts
        self._head = names.read_head(event.headers, self._shared.settings.tenant_header)
        self._id = self._head.id or self._new_id()
        self._shared.api = api_of(self._head.path)
        if self._shared.api is _OPAQUE:
            for name in names.ORIGINAL_PATHS:  # the gateway may have rewritten the path
                self._shared.api = api_of(event.headers.get(name, ""))
                if self._shared.api is not _OPAQUE:
                    break
        if self._shared.settings.conformance_headers:
            self._select_for_test(event.headers.get(names.TEST_SELECTION, ""))
        if self._enforced is not None:
            self._shared.shadow = not self._enforced(self._head.session or self._id)

    def _select_for_test(self, value: str) -> None:
        """Narrows the choice to the endpoints that a conformance test names."""
        wanted = names.read_subset(value) if value else None
        if wanted is not None:
            self._subset = wanted if self._subset is None else self._subset & wanted

    def _request_body(self, event: RequestBody, now: float, out: list[Action]) -> RequestPhase:
        body = self._body
        if self.phase is RequestPhase.PASSING:
            self._shared.dialect.pass_request(event.data, out, end=event.end)
            return RequestPhase.SENT if event.end else RequestPhase.PASSING
        if body.gave_way:
            return self._refuse_held(out)
        if self._subset is None:
            self._subset = event.subset
        body.add(event.data)
        body.whole = event.end or self._shared.dialect.sends_whole_bodies
        if body.size_bytes > self._shared.settings.max_body_bytes:
            return self._refuse_long(out)
        if body.whole:
            return self._read_body(now, out)
        body.stays = self._shared.shadow
        if not body.hold(len(event.data), now):
            return self._refuse_held(out)
        return RequestPhase.BODY

    def _refuse_held(self, out: list[Action]) -> RequestPhase:
        """Refuses a body for which there is no room among those of all streams."""
        error = RequestError(
            503,
            "bodies-full",
            "the picker holds as many bodies as bodies.max_held_bytes allows",
            retry_after_s=1,
        )
        return self._refuse(error, out)

    def _request_trailers(
        self, event: RequestTrailers, now: float, out: list[Action]
    ) -> RequestPhase:
        if self.phase is RequestPhase.PASSING:
            out.append(AnswerTrailers(Direction.REQUEST))
            return RequestPhase.SENT
        if self._body.gave_way:
            return self._refuse_held(out)
        self._body.trailers = True
        return self._read_body(now, out)

    def _read_body(self, now: float, out: list[Action]) -> RequestPhase:
        body = self._body.complete()
        if len(body) > ASIDE_BYTES:
            if not self._body.hold(len(body), now):
                return self._refuse_held(out)
            out.append(Read(self._shared.api, body))
            return RequestPhase.READING
        return self._take_read(try_read(self._shared.api, body), now, out)

    def _has_read(self, event: HasRead, now: float, out: list[Action]) -> RequestPhase:
        self._body.release()
        return self._take_read(event.read, now, out)

    def _take_read(self, read: Body | RequestError, now: float, out: list[Action]) -> RequestPhase:
        if not isinstance(read, RequestError) and self._hook is not None:
            read = self._reworked(self._hook, read, now)
        if isinstance(read, RequestError):
            return self._refuse(read, out)
        return self._ask(read, now, out)

    def _reworked(self, hook: BodyHook, read: Body, now: float) -> Body | RequestError:
        """Lets the hook look at the body; the body as read again if it was changed."""
        body = self._body.complete()
        if self._shared.api is _OPAQUE or not read.spans:
            return read
        rework = self._shared.rework = hook.apply(
            body,
            api=self._shared.api,
            model=read.model,
            head=self._head,
            may_change=not self._shared.shadow,
            now=now,
            document=read.document,
        )
        if rework is None or rework.body is body:
            return read
        self._body.replace(rework.body)
        return try_read(self._shared.api, rework.body)

    def _ask(self, read: Body, now: float, out: list[Action]) -> RequestPhase:
        head = self._head
        self._shared.asked, self._model_span = read.model, read.model_span
        if self._shared.api is not _OPAQUE and not self._shared.dialect.shows_answers:
            self._shared.read_answer = (
                self._sampled(now)
                or self._shared.api is Api.RESPONSES  # to learn which engine keeps the answer
                or (self._hook is not None and self._hook.reads_answer(head, now))
            )
        request = request_of(
            head,
            read,
            request_id=self._id,
            api=self._shared.api,
            rules=self._rules,
            body_bytes=self._body.size_bytes,
            body=self._body.data or b"",
            salt_by_tenant=self._shared.settings.by_tenant,
            pool=self._pool,
            subset=self._subset,
            shadow=self._shared.shadow,
            sees_answer=self._shared.sees_answer,
            trace=self._join(head.trace_parent, head.trace_state) if self._join else None,
        )
        request.whole = not self._room_for_headers
        if self._shared.rework is not None:
            request.context = self._shared.rework.context
            self._shared.rework.asked(self._id, now)
        if self._shared.since is not None:
            request.waited_s = self._shared.since.waited_s(head.since, request, now)
            self._shared.asked_at = now
        out.append(Ask(request))
        return RequestPhase.DECIDING

    # -- from the decision on ----------------------------------------------------------------------

    def _decided(self, event: Decided, now: float, out: list[Action]) -> RequestPhase:
        decision = self._shared.decision = event.decision
        forget_prompt(decision.request)
        self._shared.overhead_us = event.overhead_us
        if self._shared.shadow:
            return self._stand_aside(out)
        came = self._body
        body, changed = came.data, came.changed
        if body is not None:
            fitted = self._fitted(decision, body)
            body, changed = fitted, changed or fitted is not body
        patient = patience(decision)
        if patient.begin_s is not None:
            self._shared.hurried_at = now + patient.begin_s
        sending = Sending(
            ",".join(destinations(decision, self._attempts)),
            patient,
            self._head,
            decision.request.id,
            self._room_for_headers,
            body,
            changed,
            came.whole,
            came.trailers,
            _engine_headers(decision),
        )
        self._shared.dialect.send(sending, out)
        came.take()  # not before: after a fault it goes on as it came
        return RequestPhase.SENT if came.whole else RequestPhase.PASSING

    def _fitted(self, decision: Decision, body: bytes) -> bytes:
        """The body as the endpoint takes it; the same object where nothing is to change."""
        target = decision.rewrite or decision.request.model
        try:
            if target != self._shared.asked:
                body = splice_model(body, target, self._model_span)
                self._shared.target = target
        except (ValueError, RequestError):  # the destination stays: it may not be any other
            self.unspliced += 1
        return body

    def _refused(self, event: Refused, now: float, out: list[Action]) -> RequestPhase:
        return self._refuse(event.error, out)

    def _refuse(self, error: RequestError, out: list[Action]) -> RequestPhase:
        if self._shared.shadow:
            return self._stand_aside(out)
        self._shared.refuse_rework()
        self._body.take()
        out.append(refusal(error))
        return RequestPhase.OVER

    def _stand_aside(self, out: list[Action]) -> RequestPhase:
        """Lets the request go on as it came."""
        self._shared.dialect.stand_aside(self._body, out)
        return RequestPhase.SENT if self._body.whole else RequestPhase.PASSING

    def _failed(self, event: Failed, now: float, out: list[Action]) -> RequestPhase:
        """The request goes on as it came; nothing if it is too late.

        It is refused instead where the gateway's route restricts it to a pool or a subset: without
        a destination Envoy takes any endpoint, of any pool.

        In the gateway shape Envoy keeps no copy of a body, and takes a stream that just ends for
        the end of the body.
        """
        if not self._begun or self.phase not in _UNANSWERED:
            return self.phase
        if self._body.gave_way:
            return self._refuse_held(out)
        if (self._pool or self._subset is not None) and not self._shared.shadow:
            error = RequestError(
                503,
                "picker-fault",
                "the picker failed, and may not pass the request to any endpoint at all",
                retry_after_s=1,
            )
            return self._refuse(error, out)
        self._shared.shadow = True
        return self._stand_aside(out)

    def _closed(self, event: Closed, now: float, out: list[Action]) -> RequestPhase:
        self._body.take()
        return RequestPhase.OVER


def _engine_headers(decision: Decision) -> tuple[tuple[str, str], ...]:
    """The headers by which the engine is steered, besides the destination."""
    found = []
    if decision.prefiller is not None:
        found.append((names.PREFILLER, decision.prefiller.address))
    if decision.engine_priority is not None:
        found.append((names.PRIORITY, str(decision.engine_priority)))
    return tuple(found)


REQUEST_HANDLERS: Mapping[type, Callable[[RequestHalf, Any, float, list[Action]], RequestPhase]] = {
    RequestHeaders: RequestHalf._request_headers,
    WholeRequest: RequestHalf._whole_request,
    RequestBody: RequestHalf._request_body,
    RequestTrailers: RequestHalf._request_trailers,
    HasRead: RequestHalf._has_read,
    Decided: RequestHalf._decided,
    Refused: RequestHalf._refused,
    Failed: RequestHalf._failed,
    Closed: RequestHalf._closed,
}
"""Handlers by the event that they handle."""
