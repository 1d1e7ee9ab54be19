"""The request half of a stream: Envoy's messages, the decision, and the forwarded request.

Each handler returns the next phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from typing import Any

from laar.core.decision import Decision
from laar.core.plugin import gather
from laar.errors import RequestError
from laar.fleet.membership import PLAIN
from laar.protocol import headers as names
from laar.protocol import paths
from laar.protocol.events import (
    Action,
    AnswerHeaders,
    AnswerTrailers,
    Ask,
    BodyMode,
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
)
from laar.protocol.jsonscan import SHORT_BYTES, is_quick
from laar.protocol.marks import Marks
from laar.protocol.openai import ASIDE_BYTES, Body, read_body
from laar.protocol.ports import BodyHook
from laar.protocol.reserved import denied_member, names_peer
from laar.protocol.sessions import MAX_HINTS
from laar.protocol.sockets import socket_names
from laar.protocol.splice import splice_members, splice_model
from laar.protocol.stream.attempts import attempts_of
from laar.protocol.stream.contract_headers import (
    MAX_HEADER_BYTES_TO_ADD_TO,
    MAX_HEADERS_TO_ADD_TO,
    MOST_HEADERS,
    change_headers,
    refusal,
)
from laar.protocol.stream.dialect import DIALECTS
from laar.protocol.stream.phases import RequestPhase
from laar.protocol.stream.state import StreamState
from laar.request import UPGRADE_REQUIRED, Api

_NO_HEAD = names.read_head({})
_SAFE = ("GET", "HEAD", "OPTIONS")
_OPAQUE = Api.OPAQUE
_LISTS = "models"
"""The reason of an answer with the picker's own list of models."""
_MAX_DIGITS = 20
"""Maximum number of digits in a content length; Python refuses to parse thousands of digits."""

_KEPT_CHARS = 500
"""Number of characters kept of a question's start, and of its end, after the decision. No feature
reads more, and in a busy fleet, whole prompts of unfinished answers would take gigabytes."""

_BY_TENANT = ("files", "uploads", "batches")
"""Collections whose objects are kept at a single endpoint for each tenant."""
_BODIES_FULL = RequestError(
    503,
    "bodies-full",
    "the picker holds as many bodies as bodies.max_held_bytes allows",
    retry_after_s=1,
)
_NO_BODIES = RequestError(
    500,
    "no-bodies",
    "the gateway shows the picker no request bodies: let its ext_proc filter send them with"
    " request_body_mode FULL_DUPLEX_STREAMED or BUFFERED",
)
_UNANSWERED = (RequestPhase.HEADERS, RequestPhase.BODY, RequestPhase.READING, RequestPhase.DECIDING)


class RequestHalf(StreamState):
    """The handlers of the request half."""

    request_phase = RequestPhase.HEADERS
    unspliced = 0
    """Number of bodies forwarded unchanged because they could not be spliced."""
    _head = _NO_HEAD
    _id = ""
    _facts = paths.PathFacts(_OPAQUE, unread=False, denied=False)
    _may_add_headers = True
    _room = MOST_HEADERS
    _subset: frozenset[str] | None = None
    _pool = ""
    _unread = b""
    """What stands for a body that is not read: two of the same length count as one."""
    _attempts = 0
    _model_span: tuple[int, int] | None = None

    # -- up to the question ------------------------------------------------------------------------

    def _request_headers(
        self, event: RequestHeaders, now: float, out: list[Action]
    ) -> RequestPhase:
        body, max_bytes = self.body, self.env.settings.max_body_bytes
        kind = event.shape, event.attempts > 0, event.body is not None
        dialect = self.dialect = DIALECTS[kind]
        self._may_add_headers = (
            event.count <= MAX_HEADERS_TO_ADD_TO and event.size_bytes <= MAX_HEADER_BYTES_TO_ADD_TO
        )
        if event.count <= MOST_HEADERS:  # else the gateway's limit is higher
            self._room = MOST_HEADERS - event.count
        body.is_complete = event.end or event.body is not None
        facts = self._begin(event)
        if facts.denied:
            return self._refuse(paths.DENIED_ERROR, out)
        request_id = event.headers.get(names.REQUEST_ID, "")
        if "_addr_" in request_id and names_peer(request_id):
            return self._refuse(denied_member(names.REQUEST_ID), out)
        if self._head.method == "POST" and event.headers.get("upgrade", "").lower() == "websocket":
            # Some engines treat this as a plain POST, whose body would bypass the reader.
            return self._refuse(RequestError(400, "bad-request", "a POST can't be upgraded"), out)
        if event.end and (phase := self._list_models(out)) is not None:
            return phase
        first = self.env.tickets.get(event.headers.get(names.TICKET, ""))
        if (
            first is not None
            and first.request.pool == self._pool
            and self._subset in (None, first.request.subset)
        ):
            return self._answer_again(first, out)
        if self._head.upgrade:
            self.may_ask_plainly = self.api is not _OPAQUE
            model, session = socket_names(self._head.path, event.headers)
            opened = Body(api=_OPAQUE, model=model, session=session, needs_model=UPGRADE_REQUIRED)
            return self._ask(opened, now, out)
        if event.end or facts.unread:
            return self._ask_unread(now, out)
        if dialect.request_mode is BodyMode.NONE and not dialect.is_own:
            return self._refuse(_NO_BODIES, out)
        if not dialect.shows_requests:
            return self._ask_unread(now, out)
        if event.body is not None:
            body.data, body.size_bytes = event.body, len(event.body)
            is_long = body.size_bytes > max_bytes
            return self._refuse_long(out) if is_long else self._read_body(now, out)
        length = event.headers.get("content-length", "")
        if length.isdecimal() and len(length) < _MAX_DIGITS and int(length) > max_bytes:
            return self._refuse_long(out)
        if dialect.sends_whole_bodies:  # else Envoy holds the headers
            out.append(AnswerHeaders(Direction.REQUEST, []))
        return RequestPhase.BODY

    def _list_models(self, out: list[Action]) -> RequestPhase | None:
        """Answer a request for the fleet's or pool's models, or for one model; else return None."""
        name = self._asked_list()
        if (
            name is None
            or not self.env.settings.list_models
            or self._subset is not None
            or self.shadow
        ):
            return None
        try:
            listed = self.env.catalog(self._pool, name)
        except RequestError as error:
            return self._refuse(error, out)
        if listed is None:
            return None
        headers = [("content-type", "application/json"), (names.REASON, _LISTS)]
        out.append(Immediate(200, headers, listed))
        return RequestPhase.OVER

    def _asked_list(self) -> str | None:
        """Return the model to describe, or empty if all are to be listed; None if neither."""
        return paths.listed_of(self._head.path) if self._head.method == "GET" else None

    def _answer_again(self, first: Decision, out: list[Action]) -> RequestPhase:
        """Repeat the answer to a gateway that asks again for a request, which is counted once."""
        to = ",".join((first.address, *first.fallbacks))
        again = AnswerHeaders(Direction.REQUEST, [(names.DESTINATION, to)], destination=to)
        self.dialect.send(again, self.body, out)
        return RequestPhase.SENT if self.body.is_complete else RequestPhase.PASSING

    def _refuse_long(self, out: list[Action]) -> RequestPhase:
        """Refuse a body above the limit: it is not read, so its model is unknown."""
        limit = self.env.settings.max_body_bytes
        error = RequestError(413, "body-too-large", f"the body is longer than {limit} bytes")
        return self._refuse(error, out)

    def _ask_unread(self, now: float, out: list[Action]) -> RequestPhase:
        """Ask for a decision based on the headers alone."""
        return self._ask(Body(api=_OPAQUE, model=paths.model_of(self._head.path)), now, out)

    def _begin(self, event: RequestHeaders) -> paths.PathFacts:
        """Read the headers, set what depends on them alone, and return the path's properties."""
        env = self.env
        self.begun = True
        self._subset, self._pool, self._attempts = event.subset, event.pool, event.attempts
        self.longest_hold_s = event.longest_hold_s
        head = self._head = names.read_head(event.headers, env.settings.tenant_header)
        self._id = head.id or env.new_id()
        facts = self._facts = env.facts_of(head.path.partition("?")[0])
        if head.method == "POST" and (length := event.headers.get("content-length")):
            self._unread = f"{head.tenant}\n{head.path}\n{length}".encode()
        self.api = facts.api
        if facts.api is _OPAQUE:
            for name in names.ORIGINAL_PATHS:  # the gateway may have rewritten the path
                self.api = paths.api_of(event.headers.get(name, ""))
                if self.api is not _OPAQUE:
                    break
        if not head.path:
            # A gateway that serves requests itself shows neither paths nor answers (NGINX's).
            self.answer.is_hidden = True
            if self.api is _OPAQUE:
                self.api = Api.OTHER
        test = event.headers.get(names.TEST_SELECTION) if env.settings.conformance_headers else ""
        if test:
            wanted = names.read_subset([test])
            self._subset = wanted if self._subset is None else self._subset & wanted
        if env.enforced is not None and not facts.denied:  # those are refused in shadow mode too
            self.shadow = not env.enforced(head.named.session or self._id)
        return facts

    def _request_body(self, event: RequestBody, now: float, out: list[Action]) -> RequestPhase:
        body = self.body
        if self.request_phase is RequestPhase.PASSING:
            self.dialect.pass_request(event.data, out, end=event.end)
            return RequestPhase.SENT if event.end else RequestPhase.PASSING
        if body.gave_way:
            return self._refuse(_BODIES_FULL, out)
        if self._subset is None:
            self._subset = event.subset
        body.add(event.data)
        body.is_complete = event.end or self.dialect.sends_whole_bodies
        if body.size_bytes > self.env.settings.max_body_bytes:
            return self._refuse_long(out)
        if body.is_complete:
            return self._read_body(now, out)
        body.stays = self.shadow
        if not body.hold(len(event.data), now):
            return self._refuse(_BODIES_FULL, out)
        return RequestPhase.BODY

    def _request_trailers(
        self, event: RequestTrailers, now: float, out: list[Action]
    ) -> RequestPhase:
        if self.request_phase in (RequestPhase.PASSING, RequestPhase.SENT):
            out.append(AnswerTrailers(Direction.REQUEST))
            return RequestPhase.SENT
        if self.body.gave_way:
            return self._refuse(_BODIES_FULL, out)
        self.body.trailers = True
        return self._read_body(now, out)

    def _read_body(self, now: float, out: list[Action]) -> RequestPhase:
        collected = self.body
        if collected.held_bytes:
            collected.release()
        collected.is_complete = True
        body = collected.data = bytes(collected.data or b"")
        is_short = len(body) <= SHORT_BYTES  # as usual
        if len(body) > ASIDE_BYTES or not (is_short or is_quick(body)):
            if not collected.hold(len(body), now):
                return self._refuse(_BODIES_FULL, out)
            out.append(Read(self.api, body))
            return RequestPhase.READING
        try:
            read = read_body(self.api, body)
        except RequestError as error:
            return self._refuse(error, out)
        return self._ask(read, now, out)

    def _has_read(self, event: HasRead, now: float, out: list[Action]) -> RequestPhase:
        self.body.release()
        if isinstance(event.read, RequestError):
            return self._refuse(event.read, out)
        return self._ask(event.read, now, out)

    def _reworked(self, hook: BodyHook, read: Body, now: float) -> Body:
        """Pass the body to the hook; return its fields, read again if the hook changed it.

        Raise `RequestError` if the changed body cannot be read.
        """
        rework = self.rework = hook.apply(
            bytes(self.body.data or b""),
            api=self.api,
            model=read.model,
            head=self._head,
            may_change=not self.shadow,
            shows_answer=self.dialect.shows_answers,
            now=now,
            document=read.document,
        )
        if rework is None or rework.body is self.body.data:
            return read
        self.body.replace(rework.body)
        return read_body(self.api, rework.body)

    def _ask(self, read: Body, now: float, out: list[Action]) -> RequestPhase:
        env, head = self.env, self._head
        self.api = read.api
        if data := self.body.data or self._unread:
            # Nobody can make a body with the hash of another's.
            read.digest = int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
        hook = None if self.answer.is_hidden else env.hook  # such a gateway sends its own body
        if hook is not None and read.spans and self.api is not _OPAQUE:
            try:
                read = self._reworked(hook, read, now)
            except RequestError as error:
                return self._refuse(error, out)
        read.model = self._facts.model or read.model or paths.model_of(self._head.path)
        self.asked, self._model_span = read.model, read.model_span
        computes = self._facts.computes or self.api is not _OPAQUE
        self.acts = head.method not in _SAFE and (read.acts or not computes)
        if self.api is Api.RESPONSES:
            self.stores_answer = True
        elif self._facts.stores == "conversations" and self.api is _OPAQUE:
            self.stores_answer = self.read_answer = head.method == "POST"
        if self.api is not _OPAQUE and not self.dialect.shows_answers:
            self.read_answer = (
                env.sampled(now)
                or self.stores_answer
                or (self.rework is not None and self.rework.renames)
            )
        self.read_answer = self.read_answer and self.dialect.is_own
        self._complete_request(read)
        read.document, read.members = None, ()
        out.append(Ask(read))
        return RequestPhase.DECIDING

    def _complete_request(self, request: Body) -> None:
        """Add information from the headers and the path to what was read from the body."""
        head, env, facts = self._head, self.env, self._facts
        if facts.route in paths.ENCODING_ROUTES:
            request.encodes, request.answers = True, 1
        frees = facts.any_model or head.method == "OPTIONS" or self._asked_list() is not None
        if head.path and not frees:  # a path that the gateway does not show may name a model
            request.needs_model = request.needs_model or 400
        if self.api is _OPAQUE:
            request.response_id = paths.response_of(head.method, head.path)
        else:  # precedence: the cluster's rules, the gateway's header, the client
            rules, model = env.rules, request.model
            rewrite = rules.rewrite(model, self._pool) if rules.by_source else None
            request.model = rewrite or head.rewrite or model
        if self.shadow and env.resolved is not None:
            # Engines do not know a name that the picker replaces.
            self.shadow = request.model == self.asked and request.model not in env.resolved
        request.subset, request.pool = self._subset, self._pool
        if facts.route and self._subset is None and not self._pool:
            request.subset = env.with_route(facts.route, request.model)
        if head.tenant and env.settings.by_tenant:
            request.salt = f"{head.tenant}\n{request.salt}"  # tenant names have no line breaks
        request.id = self._id
        request.body_bytes = self.body.size_bytes
        request.body = bytes(self.body.data or b"")
        request.tenant, request.objective = head.tenant, head.objective
        if head.objective:
            request.priority = env.rules.priority(head.objective, self._pool)
        if env.kept_members is not None and request.members:
            may_change = not (self.shadow or head.signed or self.answer.is_hidden)
            request.any_mode = may_change and env.kept_members.isdisjoint(request.members)
        request.tried, request.task = head.tried, head.task
        if env.settings.allow_policy_header:
            request.policy = head.policy
        elif head.policy:
            self.ignored_header = names.POLICY
        request.retries, request.wrong_answer_s = head.retries, head.wrong_answer_s
        request.given, request.parent = head.given, head.parent
        request.companion_of = head.companion_of
        if head.companion_of:  # a session's context has one place; a companion may be cancelled
            request.session, request.hints = "", ()
        elif head.named.session:
            request.session, request.named_by, request.hints = head.named
        elif not request.session and head.named.hints:
            request.hints = (*head.named.hints, *request.hints)[:MAX_HINTS]
        request.conversation_id = facts.conversation_id or request.conversation_id
        if facts.stores in _BY_TENANT:
            request.stays_as = head.tenant
        elif head.upgrade and request.session:
            request.stays_as = f"{head.tenant}\n{request.session}"
        request.ttft_objective_s = head.ttft_objective_s
        request.patience_s, request.longest_hold_s = head.patience_s, self.longest_hold_s
        request.shadow = self.shadow
        request.first_token_seen = request.stream and (
            self.read_answer or self.dialect.shows_answers
        )
        request.prefill_in_place = not self._may_add_headers

    # -- from the decision on ----------------------------------------------------------------------

    def _decided(self, event: Decided, now: float, out: list[Action]) -> RequestPhase:
        decision, is_own = event.decision, self.dialect.is_own
        if not (is_own or self.env.settings.gateway_lists):
            decision = replace(decision, fallbacks=())
        self.decision = decision
        request, body = decision.request, self.body
        # Keep only the part of the prompt that is read after the decision.
        request.spans, request.body, question = (), b"", request.question
        if isinstance(request.marks, Marks):
            request.marks = request.marks.read or None
        if len(question) > 2 * _KEPT_CHARS:
            request.question = question[:_KEPT_CHARS] + question[-_KEPT_CHARS:]
        self.overhead_us, self.held_s = event.overhead_us, event.held_s
        if self.shadow:
            return self._stand_aside(out, self.asked)
        attempts = attempts_of(
            decision,
            self._attempts,
            acts=self.acts,
            body_bytes=body.size_bytes if body.is_complete else None,
        )
        if attempts.patience_s in names.BEGINS_S:
            self.hurried_at = now + attempts.patience_s
        decided = AnswerHeaders(
            Direction.REQUEST,
            [],
            destination=",".join(attempts.destinations),
            clears_route=is_own,
            skip_body=self._head.method == "HEAD",  # else Envoy drops the answer's length
            patience_s=attempts.patience_s,
            retries=attempts.retries,
            engine_headers=_engine_headers(decision, self._head.path),
        )
        if not self.dialect.keeps_headers:
            room = self._room - len(decided.engine_headers)
            if not is_own and room > 2:
                self.ticket = self.env.new_id()
                self.env.tickets[self.ticket] = decision
            change_headers(
                decided,
                self._head,
                request.id,
                is_own=is_own,
                may_name=self._may_add_headers if is_own else room > 0,
                may_add=self._may_add_headers,
                may_read=self.api is not _OPAQUE,
                ticket=self.ticket,
            )
        if body.data is not None and (target := decision.rewrite or request.model) != self.asked:
            self._fit(bytes(body.data), target)
        if body.data is not None and decision.parts:
            for members in filter(None, gather(decision, "members")):
                body.replace(splice_members(bytes(body.data), members))
        self.dialect.send(decided, body, out)
        body.data = None  # kept until now: after an error the body is forwarded unchanged
        return RequestPhase.SENT if body.is_complete else RequestPhase.PASSING

    def _fit(self, data: bytes, target: str) -> None:
        """Put the endpoint's model name into the body, unless it can't be spliced."""
        try:
            self.body.replace(splice_model(data, target, self._model_span))
            self.target = target
        except RequestError:
            self.unspliced += 1  # the body still goes to the chosen endpoint

    def _refuse(self, error: RequestError, out: list[Action]) -> RequestPhase:
        if self.shadow and not self._head.companion_of:  # any endpoint can refuse an unknown name
            model = "" if error.reason == "unknown-model" else self.asked or None
            return self._stand_aside(out, model)
        self.refuse_rework()
        self.body.take()
        out.append(refusal(error, self._id))
        return RequestPhase.OVER

    def _stand_aside(self, out: list[Action], model: str | None = None) -> RequestPhase:
        """Forward the request unchanged; Envoy chooses among the endpoints with the model.

        An empty name allows all endpoints; with None, Envoy looks for a name in the request.
        """
        body = self.body
        body.changed = False
        self.dialect.send(AnswerHeaders(Direction.REQUEST, [], model=model), body, out)
        body.take()
        return RequestPhase.SENT if body.is_complete else RequestPhase.PASSING

    def _failed(self, event: Failed, now: float, out: list[Action]) -> RequestPhase:
        """Forward the request unchanged, if it has begun and has not been forwarded yet.

        Refuse it instead if the gateway's route restricts it to a pool or subset: without a
        destination Envoy would choose any endpoint of any pool. In the gateway shape Envoy keeps no
        copy of a body, and treats the end of a stream as the end of the body.
        """
        if not self.begun or self.request_phase not in _UNANSWERED:
            return self.request_phase
        if self.body.gave_way:
            return self._refuse(_BODIES_FULL, out)
        if (self._pool or self._subset is not None) and not self.shadow:
            error = RequestError(
                503,
                "picker-fault",
                "the picker failed, and the request may not go to just any endpoint",
                retry_after_s=1,
            )
            return self._refuse(error, out)
        self.shadow = True
        return self._stand_aside(out, self.asked or None)

    def _closed(self, event: Closed, now: float, out: list[Action]) -> RequestPhase:
        self.env.tickets.pop(self.ticket, None)
        self.body.data = None
        if self.body.held_bytes:
            self.body.release()
        return RequestPhase.OVER


def _engine_headers(decision: Decision, path: str) -> tuple[tuple[str, str], ...]:
    """Return the headers that control the engine, besides the destination."""
    found, way = list[tuple[str, str]](), decision.way
    plain, mark, query = path.partition("?")
    is_long = plain.endswith("/") and decision.request.api is not _OPAQUE
    if is_long:  # many engines redirect such a path, and clients do not follow
        path = plain.rstrip("/") + mark + query
    if is_long or way.base != PLAIN.base:
        found.append((":path", way.path(path)))
    if way.key:
        found += zip(names.CREDENTIALS, (f"Bearer {way.key}", way.key, way.key), strict=True)
    if decision.parts:
        found += chain.from_iterable(gather(decision, "headers"))
    if decision.engine_priority is not None:
        found += ((name, str(decision.engine_priority)) for name in names.PRIORITIES)
    if decision.rank is not None:
        found.append((names.RANK, str(decision.rank)))
    if decision.flight.traced_as:
        found.append((names.SESSION_ID, decision.flight.traced_as))
    return tuple(found)


REQUEST_HANDLERS: Mapping[type, Callable[[RequestHalf, Any, float, list[Action]], RequestPhase]] = {
    RequestHeaders: RequestHalf._request_headers,
    RequestBody: RequestHalf._request_body,
    RequestTrailers: RequestHalf._request_trailers,
    HasRead: RequestHalf._has_read,
    Decided: RequestHalf._decided,
    Refused: lambda half, event, _now, out: half._refuse(event.error, out),
    Failed: RequestHalf._failed,
    Closed: RequestHalf._closed,
}
"""Handlers by event type."""
