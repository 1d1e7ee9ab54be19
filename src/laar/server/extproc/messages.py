"""Protobuf messages to events, actions to protobuf messages: what Envoy says, and what it is told.

A message costs a few microseconds to parse or to write. Answers that never change are serialised
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.type.v3 import http_status_pb2

from laar.protocol import headers as names
from laar.protocol.events import (
    Action,
    AnswerBody,
    AnswerHeaders,
    AnswerTrailers,
    Direction,
    Event,
    Immediate,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Shape,
    WholeRequest,
)

__all__ = ["event_of", "message_of"]

_MANY_DIGITS = 9
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


# -- messages to events ------------------------------------------------------------------------


def event_of(message: pb.ProcessingRequest) -> Event | None:
    """What a message says; None for one of a kind that is of no use here."""
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
    status, streamed, retry_after_s = None, False, None
    for header in headers:
        name = header.key
        if name in (":status", "status"):  # without the colon from some test clients
            text = _value(header)
            status = int(text) if text.isascii() and text.isdigit() else None
        elif name == "content-type":
            streamed = "text/event-stream" in _value(header)
        elif name == "retry-after":
            text = _value(header)
            retry_after_s = (
                float(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
            )
    end = message.response_headers.end_of_stream
    count, served = len(headers), _served(message)
    return ResponseHeaders(status, streamed, count, end, served, retry_after_s)


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


def message_of(action: Action) -> bytes | None:
    """The message that an action stands for, written; None for one that is a note to us."""
    write = _ANSWERS.get(type(action))
    return None if write is None else write(action)
