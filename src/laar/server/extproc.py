"""The ext_proc server: protobuf messages to events, actions to protobuf messages.

The only file of the serving path that knows gRPC. A message costs a few microseconds to parse or to
write; what costs is grpc.aio's own loop, about 100 us for a message in and out. So there is one
`read` and at most one `write` for a message, answers that never change are serialised once, and
nothing is spawned for a stream.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.type.v3 import http_status_pb2

from laar.core.director import Director
from laar.core.request import Request, Trace
from laar.errors import RequestError
from laar.protocol import headers as names
from laar.protocol.bodyhook import BodyHook
from laar.protocol.events import (
    Action,
    AnswerBody,
    AnswerHeaders,
    Answering,
    AnswerTrailers,
    Ask,
    Closed,
    Decided,
    Direction,
    Ended,
    Event,
    Immediate,
    Refused,
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
from laar.protocol.rules import GatewayRules
from laar.protocol.stream import Stream, StreamSettings
from laar.server.gate import Gate
from laar.server.mending import read_message
from laar.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from laar.telemetry.tracing import Spans

__all__ = ["SERVICE", "ExternalProcessor", "Sampler"]

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_LOG = logging.getLogger(__name__)
_LOG_FAULTS_EVERY_S = 10.0
"""A fault that meets every request would fill a disk; the counter counts them all."""
_FULL_DUPLEX = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED

# Answers without content, written once. The first of a native stream is one of them.
_PLAIN: dict[str, bytes] = {
    field: pb.ProcessingResponse(**{field: kind()}).SerializeToString()
    for field, kind in (
        ("request_headers", pb.HeadersResponse),
        ("request_body", pb.BodyResponse),
        ("request_trailers", pb.TrailersResponse),
        ("response_headers", pb.HeadersResponse),
        ("response_body", pb.BodyResponse),
        ("response_trailers", pb.TrailersResponse),
    )
}
_READ_ANSWER: bytes = pb.ProcessingResponse(
    request_headers=pb.HeadersResponse(),
    mode_override=processing_mode_pb2.ProcessingMode(
        request_body_mode=processing_mode_pb2.ProcessingMode.BUFFERED,
        response_body_mode=processing_mode_pb2.ProcessingMode.STREAMED,
    ),
).SerializeToString()


class Sampler:
    """Which answers are read: a share of them, and at least one in a while.

    Reading costs a message for each chunk of the answer. Where traffic is thin that is nothing, and
    the learners would starve on a share of it; where it is thick, the share bounds the cost.

    Args:
        share: of the requests, 0 to 1; 0 reads none; may be changed.
        every_s: an answer is read when none was for so long; may be changed.
        rng: draws.
    """

    def __init__(self, share: float, *, every_s: float, rng: random.Random) -> None:
        self.share = share
        self.every_s = every_s
        self._rng = rng
        self._last = -math.inf

    def draw(self, now: float) -> bool:
        """Whether to read the answer of the request that begins now."""
        if self._rng.random() < self.share or (self.share and now - self._last > self.every_s):
            self._last = now
            return True
        return False


class ExternalProcessor:
    """Serves `Process`, one stream for each HTTP request.

    Args:
        director: decides and settles.
        settings: of the streams; may be changed, for those that begin then.
        sampler: says which native requests have their answer read.
        clock: monotonic seconds.
        metrics: what is counted.
        rules: the cluster's priorities and model rewrites.
        gate: holds requests while the fleet is full; None sends each at once.
        hook: may change request bodies; None leaves all as they are; may be changed as well.
        spans: of the decisions whose clients trace; None when nothing is traced.
    """

    def __init__(
        self,
        director: Director,
        settings: StreamSettings,
        *,
        sampler: Sampler,
        clock: Callable[[], float],
        metrics: Metrics,
        rules: GatewayRules,
        gate: Gate | None = None,
        hook: BodyHook | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._spans = spans
        self._gate = gate
        self.hook = hook
        self._director = director
        self.settings = settings
        self._sampler = sampler
        self._clock = clock
        self._metrics = metrics
        self._rules = rules
        self._log_faults_at = -math.inf
        self._streams: dict[asyncio.Task[None], Stream] = {}

    def handler(self) -> grpc.GenericRpcHandler:
        """The generic handler to add to a grpc.aio server."""
        method = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=read_message,
            response_serializer=None,  # answers are bytes already
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})

    def let_go(self) -> None:
        """Closes the streams that only wait for their exchange to end.

        Envoy takes that as the end of our part. To be cut off it takes as a fault, and where it
        fails closed it then cuts the client's answer as well.
        """
        for task, stream in self._streams.items():
            if stream.only_watches:
                task.cancel()

    async def _process(
        self, _requests: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        stream = Stream(
            self.settings,
            read_answer=self._sampler.draw(self._clock()),
            new_id=lambda: str(uuid.uuid4()),
            rules=self._rules,
            hook=self.hook,
            join=None if self._spans is None else self._joining(self._spans, context),
        )
        self._metrics.streams_open += 1
        task = asyncio.current_task()
        assert task is not None
        self._streams[task] = stream
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                try:
                    going_on = await self._message(stream, message, context)
                except (grpc.aio.AbortError, grpc.aio.UsageError):
                    raise
                except Exception:  # noqa: BLE001 - a stream's guard
                    going_on = await self._go_on_without(stream, context)
                del message  # a body is not to be held for as long as its answer takes
                if not going_on:
                    break
        except (asyncio.CancelledError, grpc.aio.AbortError, grpc.aio.UsageError):
            pass  # Envoy reset the stream: the exchange is over, which `finally` settles
        finally:
            del self._streams[task]
            self._metrics.streams_open -= 1
            self._metrics.ignored_messages += stream.ignored
            now = self._clock()
            for action in stream.receive(Closed(), now):
                self._note(action, now)

    async def _message(
        self,
        stream: Stream,
        message: pb.ProcessingRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> bool:
        """Takes one message through the machine; False when the stream is to be closed."""
        event = _event(message)
        if event is None:
            return True
        now = self._clock()
        pending: Event | None = event
        going_on = True
        while pending is not None:
            actions, pending = stream.receive(pending, now), None
            for action in actions:
                if type(action) is Ask:
                    pending = (
                        self._decide(action, now)
                        if self._gate is None
                        else await self._decide_in_turn(self._gate, action, now)
                    )
                elif (answer := self._answer(action, now)) is not None:
                    await context.write(answer)
                    going_on = type(action) is not Immediate
        return going_on

    async def _go_on_without(
        self, stream: Stream, context: grpc.aio.ServicerContext[Any, Any]
    ) -> bool:
        """After a fault of ours: lets the request go on; False when closing the stream does."""
        now = self._clock()
        self._metrics.stream_faults += 1
        if now >= self._log_faults_at:
            self._log_faults_at = now + _LOG_FAULTS_EVERY_S
            _LOG.exception("a stream failed; its request goes on without the picker")
        answers = [_ANSWERS[type(action)](action) for action in stream.give_up()]
        for answer in answers:
            await context.write(answer)
        return bool(answers)

    def _decide(self, ask: Ask, received: float) -> Decided | Refused:
        try:
            decision = self._director.decide(ask.request, self._clock())
        except RequestError as error:
            return self._refused(ask.request, error)
        overhead_s = self._clock() - received
        self._metrics.overhead(overhead_s)
        return Decided(decision, round(overhead_s * 1e6))

    async def _decide_in_turn(self, gate: Gate, ask: Ask, received: float) -> Decided | Refused:
        try:
            decision, waited_s = await gate.decide(ask.request)
        except RequestError as error:
            return self._refused(ask.request, error)
        overhead_s = max(0.0, self._clock() - received - waited_s)
        self._metrics.overhead(overhead_s)
        return Decided(decision, round(overhead_s * 1e6))

    def _refused(self, request: Request, error: RequestError) -> Refused:
        self._metrics.refused(error.status, error.reason)
        if self._spans is not None:
            self._spans.refused(request, error)
        return Refused(error)

    @staticmethod
    def _joining(
        spans: Spans, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Callable[[str, str], Trace | None]:
        return lambda parent, state: spans.join(context.invocation_metadata() or (), parent, state)

    def _answer(self, action: Action, now: float) -> bytes | None:
        """The message an action stands for; None when it was a note for us."""
        kind = type(action)
        if kind in (AnswerHeaders, AnswerBody, AnswerTrailers, Immediate):
            return _ANSWERS[kind](action)
        self._note(action, now)
        return None

    def _note(self, action: Action, now: float) -> None:
        match action:
            case Served(decision, address):
                self._metrics.moved += not decision.request.shadow
                self._director.served_by(decision, address)
                if self._gate is not None:
                    self._gate.moved(decision)
            case Answering(decision):
                self._director.answering(decision)
                if self._gate is not None:
                    self._gate.released(decision)
            case Ended(decision, completion):
                self._director.settle(decision, completion)
                if self._gate is not None:
                    self._gate.released(decision)


# -- messages to events ------------------------------------------------------------------------


def _event(message: pb.ProcessingRequest) -> Event | None:
    kind = message.WhichOneof("request")
    if kind == "request_headers":
        return _request_headers(message)
    if kind == "request_body":
        body = message.request_body
        if message.HasField("protocol_config"):  # the first message: Envoy keeps the headers
            return WholeRequest(*_attributes(message), body.body, _subset(message))
        return RequestBody(body.body, body.end_of_stream, _subset(message))
    if kind == "response_headers":
        return _response_headers(message)
    if kind == "response_body":
        answer = message.response_body
        return ResponseBody(answer.body, answer.end_of_stream)
    if kind == "request_trailers":
        return RequestTrailers()
    if kind == "response_trailers":
        return ResponseTrailers()
    return None


def _request_headers(message: pb.ProcessingRequest) -> RequestHeaders:
    headers = message.request_headers
    native = (
        message.HasField("protocol_config")
        and message.protocol_config.request_body_mode != _FULL_DUPLEX
    )
    return RequestHeaders(
        {h.key: _value(h) for h in headers.headers.headers},
        headers.end_of_stream,
        Shape.NATIVE if native else Shape.GATEWAY,
        _subset(message),
        _pool(message),
        len(headers.headers.headers),
        headers.ByteSize(),
    )


def _attributes(message: pb.ProcessingRequest) -> tuple[dict[str, str], str]:
    """The headers that stand in attributes, and the pool."""
    headers: dict[str, str] = {}
    pool = ""
    for attributes in message.attributes.values():
        for name, value in attributes.fields.items():
            if header := names.header_of(name):
                headers[header] = value.string_value
            elif name == names.POOL:
                pool = value.string_value
    return headers, pool


def _pool(message: pb.ProcessingRequest) -> str:
    """The pool that the route's metadata names; nothing a client can set."""
    for attributes in message.attributes.values():
        if names.POOL in attributes.fields:
            return str(attributes.fields[names.POOL].string_value)
    return ""


def _response_headers(message: pb.ProcessingRequest) -> ResponseHeaders:
    headers = message.response_headers.headers.headers
    status, streamed = None, False
    for header in headers:
        name = header.key
        if name in (":status", "status"):  # without the colon from some test clients
            text = _value(header)
            status = int(text) if text.isascii() and text.isdigit() else None
        elif name == "content-type":
            streamed = "text/event-stream" in _value(header)
    end = message.response_headers.end_of_stream
    return ResponseHeaders(status, streamed, len(headers), end, _served(message))


def _value(header: base_pb2.HeaderValue) -> str:
    raw = header.raw_value
    return raw.decode("utf-8", "replace") if raw else str(header.value)


def _subset(message: pb.ProcessingRequest) -> frozenset[str] | None:
    if not message.HasField("metadata_context"):
        return None
    hint = message.metadata_context.filter_metadata.get("envoy.lb.subset_hint")
    if hint is None or names.SUBSET not in hint.fields:
        return None
    value = hint.fields[names.SUBSET]
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return names.read_subset([item.string_value for item in value.list_value.values])
    return names.read_subset(value.string_value) if kind == "string_value" else None


def _served(message: pb.ProcessingRequest) -> str:
    if not message.HasField("metadata_context"):
        return ""
    known = message.metadata_context.filter_metadata.get("envoy.lb")
    if known is None or names.SERVED not in known.fields:
        return ""
    return str(known.fields[names.SERVED].string_value)


# -- actions to messages -----------------------------------------------------------------------


def _headers_answer(action: AnswerHeaders) -> bytes:
    request = action.direction is Direction.REQUEST
    field = "request_headers" if request else "response_headers"
    if not (action.set_headers or action.destination or action.skip_body):
        if request and action.read_answer:
            return _READ_ANSWER
        if not action.read_answer:
            return _PLAIN[field]
    response = pb.ProcessingResponse()
    target = response.request_headers if request else response.response_headers
    _mutate(target.response, action.set_headers, action.remove_headers)
    if action.destination:
        _send_to(response, target.response, action.destination)
    if action.skip_body or action.read_answer:
        mode = processing_mode_pb2.ProcessingMode
        response.mode_override.request_body_mode = mode.NONE if action.skip_body else mode.BUFFERED
        response.mode_override.response_body_mode = (
            mode.STREAMED if action.read_answer else mode.NONE
        )
    return _bytes(response)


def _body_answer(action: AnswerBody) -> bytes:
    request = action.direction is Direction.REQUEST
    field = "request_body" if request else "response_body"
    if action.data is None and not action.destination:
        return _PLAIN[field]
    response = pb.ProcessingResponse()
    common = (response.request_body if request else response.response_body).response
    if action.destination:  # the native shape's decision
        _mutate(common, action.set_headers, action.remove_headers)
        _send_to(response, common, action.destination)
        if action.data is not None:
            common.status = pb.CommonResponse.CONTINUE_AND_REPLACE
            common.body_mutation.body = action.data
    elif action.data is not None:
        streamed = common.body_mutation.streamed_response
        streamed.body = action.data
        streamed.end_of_stream = action.end
    return _bytes(response)


def _bytes(response: pb.ProcessingResponse) -> bytes:
    written: bytes = response.SerializeToString()
    return written


def _trailers_answer(action: AnswerTrailers) -> bytes:
    request = action.direction is Direction.REQUEST
    return _PLAIN["request_trailers" if request else "response_trailers"]


def _immediate_answer(action: Immediate) -> bytes:
    response = pb.ImmediateResponse(
        status=http_status_pb2.HttpStatus(code=action.status),
        body=action.body,
    )
    for name, value in action.headers:
        response.headers.set_headers.add().header.MergeFrom(
            base_pb2.HeaderValue(key=name, raw_value=value.encode())
        )
    return _bytes(pb.ProcessingResponse(immediate_response=response))


def _mutate(
    common: pb.CommonResponse, headers: Sequence[tuple[str, str]], remove: Sequence[str]
) -> None:
    """Sets headers, overwriting (the default when `append` is not set), and removes others."""
    if not headers and not remove:
        return  # even an empty mutation makes Envoy count headers, its own added ones included
    mutation = common.header_mutation
    for name, value in headers:
        header = mutation.set_headers.add().header
        header.key = name
        header.raw_value = value.encode()
    mutation.remove_headers.extend(remove)


def _send_to(response: pb.ProcessingResponse, common: pb.CommonResponse, destination: str) -> None:
    """The destination, in the metadata as in the header, and the route worked out again."""
    common.clear_route_cache = True
    known = response.dynamic_metadata.fields["envoy.lb"].struct_value
    known.fields[names.DESTINATION].string_value = destination


_ANSWERS: dict[type, Callable[[Any], bytes]] = {
    AnswerHeaders: _headers_answer,
    AnswerBody: _body_answer,
    AnswerTrailers: _trailers_answer,
    Immediate: _immediate_answer,
}
