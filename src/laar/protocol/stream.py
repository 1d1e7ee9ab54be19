"""One ext_proc stream as a sans-IO state machine: events in, actions out.

Envoy opens a stream for each HTTP request and speaks one of two shapes, named in its first message:

* native (request body BUFFERED, response body NONE or, for a sampled request, STREAMED): headers
  are answered at once, the body arrives as one message, and its answer carries the destination;
* gateway (FULL_DUPLEX_STREAMED both ways): nothing is answered until the whole body is here; then
  headers, body in pieces of at most 62,000 bytes, and trailers go back in that order.

The request and the response run side by side (an answer may begin before a long upload ends), so
there are two small machines, `_REQUEST` and `_RESPONSE` below: all transitions stand there, and an
event that has none in the present phase is counted and ignored. That is how the doubled end of
stream of some Envoys, or a response without a request, does no harm.

The machine decides nothing. It emits `Ask`; whoever drives it answers with `Decided` or `Refused`.
Contract: the endpoint-picker protocol v1.0.0, sections 1.4 to 1.10 of our notes.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from laar.core.decision import Completion, Decision
from laar.core.request import Api, Request, Trace
from laar.errors import RequestError
from laar.health import Reply
from laar.protocol import agreed
from laar.protocol import headers as names
from laar.protocol.answers import (
    MAX_ERROR_BYTES,
    ErrorSpotter,
    NameRestorer,
    Usage,
    UsageReader,
    error_body,
)
from laar.protocol.bodyhook import BodyHook, Rework
from laar.protocol.events import (
    Action,
    AnswerBody,
    AnswerHeaders,
    Answering,
    AnswerTrailers,
    Ask,
    Attempted,
    Closed,
    Decided,
    Direction,
    Ended,
    Event,
    HasRead,
    Immediate,
    Read,
    Refused,
    Replied,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Served,
    Shape,
    WholeRequest,
)
from laar.protocol.held import HeldBytes
from laar.protocol.openai import (
    ASIDE_BYTES,
    Body,
    api_of,
    response_of,
    set_priority,
    splice_model,
    try_read,
)
from laar.protocol.rules import GatewayRules, NoRules
from laar.protocol.settings import StreamSettings
from laar.protocol.since import Since

__all__ = ["PIECE_BYTES", "Stream", "StreamSettings", "denied_path_error"]

PIECE_BYTES = 62_000
"""Longest piece of a body in one message of the gateway shape: some Envoys cap a piece at 64 KiB,
and the frame around it needs room."""

MAX_HEADERS_TO_ADD_TO = 90
"""Envoy refuses an answer that takes a message past its limit of headers, 100 unless configured,
and fails the request. Above this many, headers stay as they are: ours are worth less than that."""

MAX_HEADER_BYTES_TO_ADD_TO = 58 << 10
"""The same for their size, which Envoy limits to 60 KiB: ours are under a kilobyte."""

_PATIENCE_S = 50.0
_PATIENCE = 10.0
_SLOWEST_TOKEN_S = 0.2
"""Silence that is allowed: an engine's hiccup, ten times the expected time to the first token, and
five tokens a second. A time-out here costs an answer, and one too long costs only a wait."""

_KEPT_CHARS = 500
"""Of a question's head and of its tail, once the request is decided: a prompt held for as long as
its answer takes would be gigabytes in a busy fleet. More than any feature is read from."""


# -- the machine -------------------------------------------------------------------------------


def denied_path_error() -> RequestError:
    """What a request for an operators' path of an engine gets."""
    return RequestError(403, "denied-path", "this path is for the engine's operators")


class _Phase(enum.Enum):
    HEADERS = "waiting for the request's headers"
    BODY = "collecting the request's body"
    DECIDING = "asked, waiting for the decision"
    PASSING = "decided; the rest of the body passes through"
    SENT = "the request is with the endpoint"
    ANSWER = "the answer passes"
    DONE = "over"


_OK = Reply(status=200)
_EMPTY = Reply(status=200, event=True)
_NO_RULES = NoRules()
_NO_HEAD = names.read_head({})
_NOTHING_READ = Body(model="")


class Stream:
    """The life of one stream.

    Args:
        settings: limits.
        read_answer: whether this request is sampled: its answer's body is read in the native shape.
            (The gateway shape shows every answer anyway.)
        new_id: makes a request id when the client sent none.
        rules: priorities and model rewrites.
        hook: may change request bodies; None leaves all as they are.
        held: counts what all streams collect in the gateway shape; None sets no limit.
        join: told ``traceparent`` and ``tracestate``, says which trace the decision is seen in;
            None when nothing is traced.
        since: knows when a question was first asked; None where nothing asks.
    """

    def __init__(
        self,
        settings: StreamSettings,
        *,
        read_answer: bool,
        new_id: Callable[[], str],
        rules: GatewayRules = _NO_RULES,
        hook: BodyHook | None = None,
        held: HeldBytes | None = None,
        join: Callable[[str, str], Trace | None] | None = None,
        since: Since | None = None,
    ) -> None:
        self._since = since
        self._join = join
        self._settings = settings
        self._rules = rules
        self._hook = hook
        self._rework: Rework | None = None
        self._reworked = False
        self._read_answer = read_answer
        self._new_id = new_id
        self._request_phase = _Phase.HEADERS
        self._response_phase = _Phase.HEADERS
        self._shape = Shape.NATIVE
        self._head = _NO_HEAD
        self._room_for_headers = True
        self._headers_kept = False
        self._api = Api.OPAQUE
        self._asked = ""  # the model's name in the client's body
        self._target: str | None = None  # the name that took its place
        self._model_span: tuple[int, int] | None = None
        self._subset: frozenset[str] | None = None
        self._pool = ""
        self._pieces: list[bytes | bytearray] = []  # none or one: what there is of the body
        self._held_bytes = 0
        self._held = held
        self._collected_bytes = 0
        self._trailers = False
        self._bodyless = False
        self._attempts = 0
        self._no_answer = False
        self._decision: Decision | None = None
        self._shadow = False
        self._stamp = ""
        self._overhead_us = 0
        self._status: int | None = None
        self._usage_reader: UsageReader | None = None
        self._restorer: NameRestorer | None = None
        self._errors: ErrorSpotter | None = None
        self._error = False
        self._refusal: Reply | None = None
        self._answered_at: float | None = None
        self._complete = False
        self.ignored = 0
        self.unspliced = 0
        """Bodies that went to their endpoint as they came, since they could not be changed."""

    def receive(self, event: Event, now: float) -> Iterator[Action]:
        """Feeds an event and yields the actions it causes; the iterator must be exhausted."""
        kind = type(event)
        handler = _REQUEST.get((self._request_phase, kind)) or _RESPONSE.get(
            (self._response_phase, kind)
        )
        if handler is None:
            self.ignored += 1
            return iter(())
        return handler(self, event, now)

    @property
    def decision(self) -> Decision | None:
        """The decision, once there is one."""
        return self._decision

    @property
    def only_watches(self) -> bool:
        """Whether nothing is expected of this stream any more but to see its end."""
        return (
            self._shape is Shape.NATIVE
            and self._response_phase is _Phase.ANSWER
            and not self._read_answer
        )

    # -- request -------------------------------------------------------------------------------

    def _request_headers(self, event: RequestHeaders, now: float) -> Iterator[Action]:
        self._shape = event.shape
        self._room_for_headers = (
            event.count <= MAX_HEADERS_TO_ADD_TO and event.size_bytes <= MAX_HEADER_BYTES_TO_ADD_TO
        )
        self._begin(event, now)
        self._bodyless = event.end
        path = self._head.path
        if path in self._settings.denied:
            self._shadow = False  # no engine is to see it, whoever chooses
            yield from self._refuse(denied_path_error())
            return
        if self._head.method == "POST" and event.headers.get("upgrade", "").lower() == "websocket":
            # Some engines answer it as a plain POST, which then nobody has read.
            yield from self._refuse(RequestError(400, "bad-request", "a POST upgrades nothing"))
            return
        if event.end or path.startswith(self._settings.opaque_paths) or self._head.upgrade:
            self._api = Api.OPAQUE
            self._request_phase = _Phase.DECIDING
            yield Ask(self._request(None, now))
        elif self._shape is Shape.NATIVE:
            yield AnswerHeaders(Direction.REQUEST, [])

    def _whole_request(self, event: WholeRequest, now: float) -> Iterator[Action]:
        self._headers_kept = True
        self._begin(event, now)
        yield from self._request_body(RequestBody(event.data, True), now)

    def _begin(self, event: RequestHeaders | WholeRequest, now: float) -> None:
        """Reads the headers, and settles what depends on them alone."""
        self._subset = event.subset
        self._pool = event.pool
        self._attempts = event.attempts
        self._head = names.read_head(event.headers, self._settings.tenant_header)
        self._api = api_of(self._head.path)
        self._request_phase = _Phase.BODY
        if self._api is Api.RESPONSES:  # which engine keeps the answer is to be learned
            self._read_answer = True
        if self._settings.enforced < 1.0:
            self._shadow = not self._is_enforced(self._settings.enforced)
        if self._api is Api.OPAQUE:
            self._read_answer = False  # nothing is learned of it
        elif self._hook is not None and not self._read_answer:
            self._read_answer = self._hook.reads_answer(self._head, now)

    def _request_body(self, event: RequestBody, now: float) -> Iterator[Action]:
        if self._subset is None:
            self._subset = event.subset
        self._collect(event.data)
        self._held_bytes += len(event.data)
        if self._held_bytes > self._settings.max_body_bytes:
            limit = self._settings.max_body_bytes
            yield from self._refuse(
                RequestError(413, "body-too-large", f"the body is longer than {limit} bytes"),
                whole=event.end or self._shape is Shape.NATIVE,
            )
        elif event.end or self._shape is Shape.NATIVE:  # BUFFERED sends all there is in one
            yield from self._ask(now)
        elif self._held is not None and not self._held.take(len(event.data)):
            yield from self._refuse(
                RequestError(
                    503,
                    "bodies-full",
                    "the picker holds as many unfinished bodies as bodies.max_held_bytes allows",
                    retry_after_s=1,
                ),
                whole=False,
            )
        else:
            self._collected_bytes += len(event.data)

    def _collect(self, data: bytes) -> None:
        """Keeps a piece of the body, in one buffer: a piece of one byte is 40 as an object."""
        if not self._pieces:
            self._pieces.append(data)
        else:
            if isinstance(self._pieces[0], bytes):
                self._pieces[0] = bytearray(self._pieces[0])
            self._pieces[0] += data

    def _let_go(self) -> None:
        """What was collected is whole, or not wanted any more."""
        if self._held is not None:
            self._held.give_back(self._collected_bytes)
        self._collected_bytes = 0

    def _request_trailers(self, event: RequestTrailers, now: float) -> Iterator[Action]:
        self._trailers = True
        yield from self._ask(now)

    def _ask(self, now: float) -> Iterator[Action]:
        self._let_go()
        body = bytes(self._pieces[0]) if self._pieces else b""
        self._pieces = [body]
        self._request_phase = _Phase.DECIDING
        if len(body) > ASIDE_BYTES:
            yield Read(self._api, body)
        else:
            yield from self._has_read(HasRead(try_read(self._api, body)), now)

    def _has_read(self, event: HasRead, now: float) -> Iterator[Action]:
        read = event.read
        if not isinstance(read, RequestError) and self._hook is not None:
            read = self._reworked_by(self._hook, read, now)
        if isinstance(read, RequestError):
            yield from self._refuse(read)
        else:
            yield Ask(self._request(read, now))

    def _reworked_by(self, hook: BodyHook, read: Body, now: float) -> Body | RequestError:
        """Lets the hook look at the body; what it makes of it, if that is something else."""
        body = bytes(self._pieces[0])
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
        self._pieces = [rework.body]
        self._held_bytes = len(rework.body)
        self._reworked = True
        return try_read(self._api, rework.body)

    def _request(self, read: Body | None, now: float) -> Request:
        head = self._head
        read = read or _NOTHING_READ
        asked = self._asked = read.model
        self._model_span = read.model_span
        wanted = asked
        if self._api is not Api.OPAQUE:
            wanted = self._rules.rewrite(asked) or head.rewrite or asked
        request = Request(
            id=head.id or self._new_id(),
            api=self._api,
            model=wanted,
            spans=read.spans,
            question=read.question,
            system=read.system,
            marks=read.marks,
            chars=read.chars,
            stream=read.stream,
            max_tokens=read.max_tokens,
            body_bytes=self._held_bytes,
            salt=self._salt(read.salt),
            tenant=head.tenant,
            priority=self._rules.priority(head.objective),
            objective=head.objective,
            tried=head.tried,
            task=head.task,
            policy=head.policy,
            session=head.session or read.session,
            response_id=read.previous
            or (response_of(head.path) if self._api is Api.OPAQUE else ""),
            ttft_objective_s=head.ttft_objective_s,
            pool=self._pool,
            subset=self._subset,
            shadow=self._shadow,
            first_token_seen=read.stream and (self._read_answer or self._shape is Shape.GATEWAY),
            trace=self._join(head.trace_parent, head.trace_state) if self._join else None,
        )
        if self._since is not None and read is not None:
            request.waited_s = self._since.waited_s(head.since, request, now)
            self._stamp = self._since.stamp(request, now)
        return request

    def _stored_response(self) -> str:
        """The stored answer that the path names; a request for a new one names it in its body."""
        return response_of(self._head.path) if self._api is Api.OPAQUE else ""

    def _salt(self, salt: str) -> str:
        """What keeps prefixes apart; no tenant's name has a character that ends it here."""
        tenant = self._head.tenant
        return f"{tenant}\n{salt}" if tenant and self._settings.by_tenant else salt

    def _is_enforced(self, share: float) -> bool:
        """By session, so that one does not flap; by request where there is none."""
        key = self._head.session or self._head.id or self._new_id()
        return zlib.crc32(key.encode()) < share * 2**32

    def _decided(self, event: Decided, now: float) -> Iterator[Action]:
        decision = self._decision = event.decision
        _forget_prompt(decision.request)
        self._overhead_us = event.overhead_us
        if self._shadow:
            yield from self._stand_aside(whole=True)
            return
        destination = ",".join(self._destinations(decision))
        silence_s = _silence_s(decision)
        set_headers, remove = self._header_changes(destination)
        has_body = bool(self._pieces)
        body = bytes(self._pieces[0]) if has_body else b""
        target = decision.rewrite or decision.request.model
        changed = self._reworked
        if has_body:
            try:
                if target != self._asked:
                    body = splice_model(body, target, self._model_span)
                    changed, self._target = True, target
                if decision.engine_priority is not None:
                    body = set_priority(body, decision.engine_priority)
                    changed = True
            except (ValueError, RequestError):  # the destination stays: it may not be any other
                self.unspliced += 1
        self._pieces.clear()
        if self._shape is Shape.NATIVE and has_body:
            if changed and not self._headers_kept:
                set_headers.append(("content-length", str(len(body))))
            self._request_phase = _Phase.SENT
            yield AnswerBody(
                Direction.REQUEST,
                body if changed else None,
                True,
                set_headers,
                remove,
                destination,
                silence_s,
            )
            return
        yield AnswerHeaders(
            Direction.REQUEST,
            set_headers,
            remove,
            destination,
            skip_body=self._shape is Shape.NATIVE and not self._bodyless,
            silence_s=silence_s,
        )
        if has_body:
            self._request_phase = _Phase.SENT
            yield from _pieces(Direction.REQUEST, body, end=not self._trailers)
            if self._trailers:
                yield AnswerTrailers(Direction.REQUEST)
        elif self._trailers:
            self._request_phase = _Phase.SENT
            yield AnswerTrailers(Direction.REQUEST)
        else:
            self._request_phase = _Phase.SENT if self._bodyless else _Phase.PASSING

    def _destinations(self, decision: Decision) -> tuple[str, ...]:
        """The endpoints in order, as often as Envoy tries: what is off the list is other models'.

        The same ones again: with none left an engine's own error would never reach the client.
        """
        ranked = (decision.address, *decision.fallbacks)
        rounds = -(-self._attempts // len(ranked))
        return (ranked * rounds)[: self._attempts] if rounds > 1 else ranked

    def _header_changes(self, destination: str) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
        """Headers to set and to remove with the decision.

        None where Envoy keeps the headers: the metadata names the destination, and the bootstrap's
        routes take the control headers off.
        """
        if self._headers_kept:
            return [], ()
        head, changes = self._head, []
        # Without room the metadata alone names the destination; but what a client wrote there goes.
        if self._room_for_headers or names.DESTINATION in head.control:
            changes.append((names.DESTINATION, destination))
        if self._room_for_headers and not head.id:
            assert self._decision is not None
            changes.append((names.REQUEST_ID, self._decision.request.id))
        return changes, tuple(name for name in head.control if name != names.DESTINATION)

    def give_up(self) -> Iterator[Action]:
        """After a fault of ours: the request goes on as it came; nothing if it is too late.

        It is refused instead where the gateway's route restricts it to a pool or a subset.

        In the gateway shape Envoy keeps no copy of a body, and takes a stream that just ends for
        the end of the body.
        """
        if self._request_phase not in (_Phase.BODY, _Phase.DECIDING):
            return
        if (self._pool or self._subset is not None) and not self._shadow:
            # Without a destination Envoy takes any endpoint, of any pool.
            yield from self._refuse(
                RequestError(
                    503,
                    "picker-fault",
                    "the picker failed, and may not pass the request to any endpoint at all",
                    retry_after_s=1,
                )
            )
            return
        self._shadow = True
        yield from self._stand_aside(whole=self._request_phase is _Phase.DECIDING)

    def _stand_aside(self, *, whole: bool) -> Iterator[Action]:
        """Lets the request go on as it came; `whole` when all of its body is here."""
        native = self._shape is Shape.NATIVE
        has_body = bool(self._pieces)
        body = b"".join(self._pieces)
        self._pieces.clear()
        self._let_go()
        self._request_phase = (
            _Phase.SENT if whole and (has_body or self._bodyless) else _Phase.PASSING
        )
        if native and has_body:
            yield AnswerBody(Direction.REQUEST, None, True, [])
            return
        yield AnswerHeaders(
            Direction.REQUEST,
            [],
            skip_body=native and not self._bodyless,
        )
        if has_body:
            yield from _pieces(Direction.REQUEST, body, end=whole and not self._trailers)
        if self._trailers:
            self._request_phase = _Phase.SENT
            yield AnswerTrailers(Direction.REQUEST)

    def _refused(self, event: Refused, now: float) -> Iterator[Action]:
        yield from self._refuse(event.error)

    def _refuse(self, error: RequestError, *, whole: bool = True) -> Iterator[Action]:
        if self._shadow:
            yield from self._stand_aside(whole=whole)
            return
        self._pieces.clear()
        self._let_go()
        self._request_phase = self._response_phase = _Phase.DONE
        yield Immediate(error.status, _refusal_headers(error), error_body(error))

    def _pass_body(self, event: RequestBody, now: float) -> Iterator[Action]:
        if self._shape is Shape.NATIVE:
            yield AnswerBody(Direction.REQUEST, None, event.end, [])
        else:
            yield from _pieces(Direction.REQUEST, event.data, end=event.end)
        if event.end:
            self._request_phase = _Phase.SENT

    def _pass_trailers(self, event: RequestTrailers, now: float) -> Iterator[Action]:
        self._request_phase = _Phase.SENT
        yield AnswerTrailers(Direction.REQUEST)

    # -- response ------------------------------------------------------------------------------

    def _response_headers(self, event: ResponseHeaders, now: float) -> Iterator[Action]:
        self._status = event.status
        if event.shape is not None:  # a filter in front of ours has answered the request
            self._shape = event.shape
        decision = self._decision
        if decision is not None and not self._shadow and event.details:
            yield from self._attempted(decision, event)
            if event.details != agreed.FROM_ENDPOINT and (event.status or 0) >= 500:
                self._rework = None
                yield from self._unanswered(decision, event, now)
                return
        if event.status is None or not 200 <= event.status < 300:
            self._rework = None
        elif self._rework is not None:  # before the client hears of it and sends its next turn
            known = (decision.address, decision.request.id) if decision else ("", "")
            decided = decision.id if decision else ""
            self._rework.accepted(event.served or known[0], known[1], now, decision=decided)
        if decision is None:
            yield AnswerHeaders(Direction.RESPONSE, [])
        else:
            if event.served and (
                self._shadow or event.attempts > 1 or event.served != decision.address
            ):
                yield Served(decision, event.served)
            yield from self._reply(decision, event)
            room = event.count <= MAX_HEADERS_TO_ADD_TO
            yield AnswerHeaders(
                Direction.RESPONSE,
                self._told(decision) if room else [],
                read_answer=self._shape is Shape.NATIVE and self._read_answer,
            )
            self._usage_reader = UsageReader(
                events=event.streamed, stored=self._api is Api.RESPONSES
            )
            if self._target is not None and self._shape is Shape.GATEWAY:
                self._restorer = NameRestorer(served=self._target, asked=self._asked)
        self._response_phase = _Phase.ANSWER
        if event.end:
            yield from self._answer_complete(now)

    def _attempted(self, decision: Decision, event: ResponseHeaders) -> Iterator[Action]:
        """Says which endpoints failed, as far as the list tells: Envoy goes through it in order."""
        answered = event.details == agreed.FROM_ENDPOINT
        ranked = (decision.address, *decision.fallbacks)
        failed = tuple(ranked[i % len(ranked)] for i in range(event.attempts - answered))
        if failed:
            yield Attempted(decision, failed)

    def _unanswered(
        self, decision: Decision, event: ResponseHeaders, now: float
    ) -> Iterator[Action]:
        """Answers in Envoy's place, which got no answer from any endpoint."""
        self._status, self._no_answer = None, True
        self._response_phase = _Phase.DONE
        silent = event.status == 504
        what = "answered in time" if silent else "could be reached"
        error = RequestError(
            event.status if silent and event.status else 503,
            "timed-out" if silent else "no-answer",
            f"no endpoint for the model `{(self._asked or decision.model)[:200]}` {what}",
            retry_after_s=1,
        )
        headers = [*_refusal_headers(error), ("x-laar-decision-id", decision.id)]
        yield from self._end(now)
        yield Immediate(error.status, headers, error_body(error))

    def _reply(self, decision: Decision, event: ResponseHeaders) -> Iterator[Action]:
        """Says what came, once that is known: a 503 is a full queue or a fault by its text."""
        if self._headers_kept and not event.end:
            # Here the choice which answers are read can still be made, knowing who answers.
            self._read_answer = self._read_answer or decision.read or event.status == 503
        read = (self._read_answer or self._shape is Shape.GATEWAY) and not event.end
        if event.status is None:
            return
        if event.status == 200 and not read:
            # Nothing at all is no answer.
            yield Replied(decision, _EMPTY if event.end else _OK, False)
            return
        reply = Reply(status=event.status, retry_after_s=event.retry_after_s)
        if event.status == 503 and read and reply.retry_after_s is None:
            self._refusal = reply
            return
        if read and 200 <= event.status < 300:
            self._errors = ErrorSpotter(events=event.streamed)
        yield Replied(decision, reply, read)

    def _look_for_error(self, decision: Decision, data: bytes) -> Iterator[Action]:
        """Says what the body of a refusal, or an error in an answer, tells of the endpoint."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            refusal.text = data[:MAX_ERROR_BYTES]
            yield Replied(decision, refusal, True)
        elif self._errors is not None and (text := self._errors.feed(data)):
            assert self._status is not None
            self._error = True
            yield Replied(decision, Reply(status=self._status, text=text, event=True), True)

    def _told(self, decision: Decision) -> list[tuple[str, str]]:
        """The response headers of the contract (overview section 4)."""
        answers = self._settings.answers
        if answers is names.Answers.NONE:
            return []
        if answers is names.Answers.AUTO:
            answers = names.Answers.IDS if decision.request.tenant else names.Answers.ALL
        if self._shadow:  # somebody else chose: only say how to look the decision up
            return [("x-laar-decision-id", decision.id), ("x-laar-mode", "shadow")]
        told = [
            ("x-laar-model", decision.model),
            ("x-laar-reason", decision.reason),
            ("x-laar-decision-id", decision.id),
        ]
        if decision.tried:
            told.append(("x-laar-tried-models", ",".join(decision.tried)))
            if self._stamp:
                told.append((names.SINCE, self._stamp))
        if decision.exhausted:
            told.append(("x-laar-exhausted", "true"))
        if answers is names.Answers.IDS:
            return told
        told.append(("x-laar-endpoint", decision.address))
        told.append(("x-laar-overhead-us", str(self._overhead_us)))
        for name, seconds in (
            ("x-laar-cost-ms", decision.expected_s),
            ("x-laar-ttft-ms", decision.ttft_s),
        ):
            if seconds is not None:
                told.append((name, f"{seconds * 1000.0:.1f}"))
        return told

    def _response_body(self, event: ResponseBody, now: float) -> Iterator[Action]:
        decision = self._decision
        if decision is not None and event.data:
            yield from self._look_for_error(decision, event.data)
        if decision is not None and self._answered_at is None and event.data:
            self._answered_at = now
            ok = self._status is not None and 200 <= self._status < 300 and not self._error
            yield Answering(decision, ok)
        if self._usage_reader is not None:
            self._usage_reader.feed(event.data)
        if event.end:
            yield from self._answer_complete(now)
        if self._shape is Shape.NATIVE:
            yield AnswerBody(Direction.RESPONSE, None, event.end, [])
        else:
            data = event.data
            if self._restorer is not None:
                data = self._restorer.feed(data, end=event.end)
            yield from _pieces(Direction.RESPONSE, data, end=event.end)

    def _response_trailers(self, event: ResponseTrailers, now: float) -> Iterator[Action]:
        yield from self._answer_complete(now)
        if self._restorer is not None:
            held = self._restorer.feed(b"", end=True)
            if held:
                yield from _pieces(Direction.RESPONSE, held, end=False)
        yield AnswerTrailers(Direction.RESPONSE)

    def _answer_complete(self, now: float) -> Iterator[Action]:
        """Notes the end; before our last message, since Envoy closes the stream on getting that.

        It often does so before writing the message has returned, and then nothing after it is run.
        """
        self._complete = True
        self._response_phase = _Phase.DONE
        yield from self._end(now)

    # -- the end -------------------------------------------------------------------------------

    def _closed(self, event: Closed, now: float) -> Iterator[Action]:
        self._request_phase = self._response_phase = _Phase.DONE
        self._pieces.clear()
        self._let_go()
        yield from self._end(now)

    def _end(self, now: float) -> Iterator[Action]:
        decision = self._decision
        if decision is None:
            return
        reader = self._usage_reader
        usage = reader.end() if reader is not None and self._complete else Usage()
        answered = self._answered_at
        ttft_s = None if answered is None else answered - decision.now
        if self._rework is not None and self._complete:
            self._rework.ended(ttft_s, usage)
            self._rework = None
        yield Ended(
            decision,
            Completion(
                status=self._status,
                cause=self._cause(),
                latency_s=now - decision.now,
                ttft_s=ttft_s,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                response_id=reader.response_id if reader is not None else "",
                error=self._error,
            ),
        )

    def _cause(self) -> str:
        """How it ended, as far as can be seen.

        In the native shape the end of an unread answer looks the same whether it was whole or not;
        it counts as complete. An answer that was being read and stopped was cut off.
        """
        if self._no_answer:
            return "error"
        if self._status is None:
            return "disconnect"
        if self._answered_at is not None and not self._complete:
            return "reset"
        return "complete"


def _forget_prompt(request: Request) -> None:
    """Keeps of the prompt what is asked of it after the decision: what features are read from."""
    request.spans = ()
    if len(request.question) > 2 * _KEPT_CHARS:
        request.question = request.question[:_KEPT_CHARS] + request.question[-_KEPT_CHARS:]


def _refusal_headers(error: RequestError) -> list[tuple[str, str]]:
    headers = [("content-type", "application/json"), ("x-laar-reason", error.reason)]
    if error.retry_after_s is not None:
        headers.append(("retry-after", str(error.retry_after_s)))
    return headers


def _silence_s(decision: Decision) -> int | None:
    """How long the endpoint may send nothing, by what was expected of it; None when unknown.

    An answer that is not streamed is silent until its last token.
    """
    request, view = decision.request, decision.view
    if view is None or view.terms is None:
        return None
    tokens = 0 if request.stream else request.max_tokens
    if tokens is None:
        return None
    expected_s = float(view.terms.latency_s[decision.position])
    bound_s = _PATIENCE_S + _PATIENCE * expected_s + _SLOWEST_TOKEN_S * tokens
    return next((s for s in names.SILENCES_S if s >= bound_s), None)


def _pieces(direction: Direction, data: bytes, *, end: bool) -> Iterator[AnswerBody]:
    """A body in pieces that Envoy takes; an empty one is one empty piece (contract 1.5)."""
    view = memoryview(data)
    for at in range(0, max(len(data), 1), PIECE_BYTES):
        last = at + PIECE_BYTES >= len(data)
        yield AnswerBody(direction, bytes(view[at : at + PIECE_BYTES]), end and last, [])


_Handler = Callable[[Stream, Any, float], Iterator[Action]]

_REQUEST: dict[tuple[_Phase, type], _Handler] = {
    (_Phase.HEADERS, RequestHeaders): Stream._request_headers,
    (_Phase.HEADERS, WholeRequest): Stream._whole_request,
    (_Phase.BODY, RequestBody): Stream._request_body,
    (_Phase.BODY, RequestTrailers): Stream._request_trailers,
    (_Phase.DECIDING, HasRead): Stream._has_read,
    (_Phase.DECIDING, Decided): Stream._decided,
    (_Phase.DECIDING, Refused): Stream._refused,
    (_Phase.PASSING, RequestBody): Stream._pass_body,
    (_Phase.PASSING, RequestTrailers): Stream._pass_trailers,
}
_RESPONSE: dict[tuple[_Phase, type], _Handler] = {
    (_Phase.HEADERS, ResponseHeaders): Stream._response_headers,
    (_Phase.ANSWER, ResponseBody): Stream._response_body,
    (_Phase.ANSWER, ResponseTrailers): Stream._response_trailers,
    **{(phase, Closed): Stream._closed for phase in _Phase},
}
