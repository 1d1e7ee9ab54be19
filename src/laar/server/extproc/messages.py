"""Convert Envoy's protobuf messages to events, and actions to protobuf messages.

Parsing or serializing a message costs a few microseconds. Constant answers are serialized once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from laar.protocol import agreed
from laar.protocol import headers as names
from laar.protocol.events import (
    SHAPES,
    AnswerBody,
    AnswerHeaders,
    AnswerTrailers,
    BodyMode,
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
)
from laar.protocol.headers import text_of
from laar.wire import ext_proc_pb2 as pb

_STATUSES = {b"%d" % status: status for status in range(100, 600)}
"""Valid HTTP statuses. Others become one status, because the status becomes a metric label."""
_NO_STATUS = 599
_TYPES = {name.encode(): name for name in ("application/json", "text/event-stream")}
"""Media types of nearly all responses."""
_MODES = {
    pb.ProcessingMode.NONE: BodyMode.NONE,
    pb.ProcessingMode.STREAMED: BodyMode.STREAMED,
    pb.ProcessingMode.BUFFERED: BodyMode.BUFFERED,
    pb.ProcessingMode.BUFFERED_PARTIAL: BodyMode.BUFFERED,
    pb.ProcessingMode.FULL_DUPLEX_STREAMED: BodyMode.DUPLEX,
}
_OVERWRITE = 2  # OVERWRITE_IF_EXISTS_OR_ADD
_SHAPES = {(a, b): SHAPES[_MODES[a], _MODES[b]] for a in _MODES for b in _MODES}
# Without trailers to wait for, Envoy from 1.37 ends the stream at the response headers of a request
# without a body, although the answer, or the WebSocket, goes on.
_SKIP_BODY = pb.ProcessingMode(response_trailer_mode="SEND")
_READ_ANSWER = pb.ProcessingMode(request_body_mode="BUFFERED", response_body_mode="STREAMED")
_LITTLE_BYTES = 64 << 10
_HEAD_BYTES, _CHUNK_BYTES = 6, 6 << 10
"""Size limits on messages that `chunk_of` reads; few chunks exceed them."""
_hold_s = lru_cache(64)(names.seconds_of)  # routes have few values
_ATTEMPTS = {str(count): count for count in range(100)}
"""Attempt counts by text. Envoy makes fewer than 100; other values are ignored."""


_NEW_BODY = [
    message.DESCRIPTOR.fields_by_name[name].number
    for message, name in (
        (pb.BodyMutation, "body"),
        (pb.CommonResponse, "body_mutation"),
        (pb.BodyResponse, "response"),
        (pb.ProcessingResponse, "request_body"),
    )
]
"""Numbers of the fields that a request's new body is in, the innermost first."""

# Answers without content, serialized once.
_PLAIN = {
    (field := f"{direction}_{part}"): pb.ProcessingResponse(**{field: {}}).SerializeToString()
    for direction in ("request", "response")
    for part in ("headers", "body", "trailers")
}


# -- messages to events ------------------------------------------------------------------------


def chunk_of(message: bytes) -> bytes | None:
    """Return the bytes of an answer's chunk, in a quarter of the time that protobuf takes.

    Return None for other messages, whose first byte is not 0x2A, and if the message is long,
    contains the answer's end, or has its fields in an unusual order.
    """
    if not _HEAD_BYTES <= len(message) <= _CHUNK_BYTES:
        return None
    size = message[3] if message[1] < 0x80 else message[4] & 0x7F | message[5] << 7
    before = _before_body(size)
    end = len(before) + size
    if not message.startswith(before) or end > len(message) or not _is_aside(message[end:]):
        return None
    return message[len(before) : end]


@lru_cache(1024)
def _before_body(length: int) -> bytes:
    """Return the bytes that precede a body of this length in a message with part of an answer."""
    body = bytes(length)
    message = pb.ProcessingRequest(response_body=pb.HttpBody(body=body))
    return message.SerializeToString().removesuffix(body)


@lru_cache(512)
def _is_aside(fields: bytes) -> bool:
    """Return whether a message's other fields are metadata, which Envoy repeats in each chunk."""
    return pb.ProcessingRequest.FromString(fields).WhichOneof("request") is None


def event_of(message: pb.ProcessingRequest) -> Event | None:
    """Return the event for a message; None for kinds of messages that laar ignores."""
    kind = message.WhichOneof("request")
    if kind == "request_headers":
        return _request_headers(message)
    if kind == "request_body":
        body = message.request_body
        if message.HasField("protocol_config"):  # the first message: Envoy holds back the headers
            given = _given(message)
            return RequestHeaders(
                given,
                False,
                _shape(message),
                _subset(message),
                given.get(names.POOL, ""),
                attempts=_ATTEMPTS.get(given.get(agreed.ATTEMPTS, ""), 0),
                body=body.body,
                longest_hold_s=_hold_s(given.get(agreed.LONGEST_HOLD, "")) or 0.0,
            )
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
    sent = headers.headers.headers
    given = _given(message)
    return RequestHeaders(
        {h.key: text_of(h.raw_value or h.value) for h in sent},
        headers.end_of_stream,
        _shape(message) if message.HasField("protocol_config") else Shape.GATEWAY,
        _subset(message),
        given.get(names.POOL, ""),
        len(sent),
        headers.ByteSize(),
        _ATTEMPTS.get(given.get(agreed.ATTEMPTS, ""), 0),
        longest_hold_s=_hold_s(given.get(agreed.LONGEST_HOLD, "")) or 0.0,
    )


def _shape(message: pb.ProcessingRequest) -> Shape:
    """Return the shape announced by a stream's first message, whatever its kind."""
    modes = message.protocol_config
    return _SHAPES.get((modes.request_body_mode, modes.response_body_mode), Shape.GATEWAY)


def _given(message: pb.ProcessingRequest) -> dict[str, str]:
    """Return the attributes as text, from all filters.

    Attributes that represent headers are returned under the headers' names.
    """
    given: dict[str, str] = {}
    filters = message.attributes
    for filter_name in filters:
        fields = filters[filter_name].fields
        for attribute in fields:  # not `fields.items()`, which is slow
            value = fields[attribute]
            name = names.header_of(attribute)
            if raw := value.string_value:
                try:
                    given[name] = raw.decode()
                except UnicodeDecodeError:
                    given[name] = text_of(raw)
            else:  # a number, or no value
                given[name] = f"{value.number_value:.0f}" if value.number_value else ""
    return given


def _response_headers(message: pb.ProcessingRequest) -> ResponseHeaders:
    headers = message.response_headers.headers.headers
    status, media_type, encoded, retry_after_s = None, "", False, None
    forged: list[str] = []
    made_by_server = False
    for header in headers:
        name, raw = header.key, header.raw_value or header.value
        if name in (":status", "status"):  # some test clients omit the colon
            status = _STATUSES.get(raw, _NO_STATUS)
        elif name == "content-type":
            media_type = _TYPES.get(raw) or names.media_type(text_of(raw))
        elif name == "content-encoding":
            encoded = text_of(raw).strip().lower() not in ("", "identity")
        elif name == "retry-after":
            retry_after_s = names.retry_after_s(text_of(raw), time.time())
        elif name in agreed.SERVERS_HEADERS:
            made_by_server = True
        if name[:1] == "x" and names.is_own(name):
            forged.append(name)
    given = _given(message)
    details = given.get(agreed.DETAILS, "").replace(agreed.NOT_UPGRADED, agreed.FROM_ENDPOINT)
    if not (details or made_by_server or (status or 0) < 400):
        details = agreed.FROM_GATEWAY
    return ResponseHeaders(
        status,
        media_type == "text/event-stream",
        len(headers),
        message.response_headers.end_of_stream,
        given.get(agreed.ANSWERED_BY) or _served(message),
        _ATTEMPTS.get(given.get(agreed.ATTEMPTED, ""), 0),
        details,
        _shape(message) if message.HasField("protocol_config") else None,
        retry_after_s,
        media_type,
        encoded,
        # In an answer generated by Envoy, these headers are laar's.
        tuple(forged) if details in ("", agreed.FROM_ENDPOINT) else (),
    )


def _subset(message: pb.ProcessingRequest) -> frozenset[str] | None:
    hint = message.metadata_context.filter_metadata.get(agreed.SUBSET_NAMESPACE)
    if hint is None or names.SUBSET not in hint.fields:
        return None
    value = hint.fields[names.SUBSET]
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return names.read_subset([text_of(item.string_value) for item in value.list_value.values])
    return names.read_subset([text_of(value.string_value)]) if kind == "string_value" else None


def _served(message: pb.ProcessingRequest) -> str:
    """Return the last endpoint tried, for a response without an upstream address."""
    known = message.metadata_context.filter_metadata.get(agreed.LB_NAMESPACE)
    if known is None or names.SERVED not in known.fields:
        return ""
    return text_of(known.fields[names.SERVED].string_value)


# -- actions to messages -----------------------------------------------------------------------


def _headers_answer(action: AnswerHeaders) -> bytes:
    request = action.direction is Direction.REQUEST
    changes = action.set_headers or action.remove_headers
    says = action.destination or action.model is not None
    if not (changes or says or action.skip_body or action.read_answer):
        return _PLAIN["request_headers" if request else "response_headers"]
    response = pb.ProcessingResponse()
    target = response.request_headers if request else response.response_headers
    if changes:
        _mutate(target.response.header_mutation, action.set_headers, action.remove_headers)
    if says:
        _send_to(response, target.response, action)
    if action.skip_body or action.read_answer:
        response.mode_override.CopyFrom(_SKIP_BODY if action.skip_body else _READ_ANSWER)
    return response.SerializeToString()


def _body_answer(action: AnswerBody) -> bytes:
    request, decided = action.direction is Direction.REQUEST, action.decided
    if action.data is None and decided is None:
        return _PLAIN["request_body" if request else "response_body"]
    response = pb.ProcessingResponse()
    common = (response.request_body if request else response.response_body).response
    if decided is not None:
        if decided.set_headers or decided.remove_headers:
            _mutate(common.header_mutation, decided.set_headers, decided.remove_headers)
        _send_to(response, common, decided)
        if action.data is not None:
            common.status = pb.CommonResponse.CONTINUE_AND_REPLACE
            if len(action.data) <= _LITTLE_BYTES:
                common.body_mutation.body = action.data
                return response.SerializeToString()
            parts = response.SerializeToString(), _before_new_body(len(action.data)), action.data
            return b"".join(parts)  # protobuf would copy the body twice more
    elif action.data is not None and action.replaces:
        common.body_mutation.body = action.data
    elif action.data is not None:
        streamed = common.body_mutation.streamed_response
        streamed.body = action.data
        streamed.end_of_stream = action.end
    return response.SerializeToString()


def _before_new_body(length: int) -> bytes:
    """Return the bytes between the other fields of a reply and the request's new body.

    A parser merges both parts into one message.
    """
    before = b""
    for field in _NEW_BODY:
        size, varint = length + len(before), bytearray()
        while size > 0x7F:
            varint.append(size & 0x7F | 0x80)
            size >>= 7
        before = bytes((field << 3 | 2, *varint, size)) + before
    return before


PASSED = _PLAIN["response_body"]
"""The reply that passes a chunk on unchanged, unless Envoy needs the bytes sent back."""


@lru_cache(1024)
def before_chunk(length: int) -> bytes:
    """Return the bytes that precede a chunk in a reply; a stream's chunks have few lengths."""
    body, response = bytes(length), pb.ProcessingResponse()
    response.response_body.response.body_mutation.streamed_response.body = body
    return response.SerializeToString().removesuffix(body)


def _immediate_answer(action: Immediate) -> bytes:
    response = pb.ImmediateResponse(
        status=pb.HttpStatus(code=action.status),
        body=action.body,
        details=f"laar_{dict(action.headers).get(names.REASON, '')}",  # for Envoy's access log
    )
    _mutate(response.headers, action.headers, ())
    return pb.ProcessingResponse(immediate_response=response).SerializeToString()


def _mutate(
    mutation: pb.HeaderMutation, headers: Sequence[tuple[str, str]], remove: Sequence[str]
) -> None:
    """Overwrite headers, and remove others.

    Call it only with changes: an empty mutation makes Envoy count headers, including its own. Envoy
    overwrites by default, but some gateways append by default, as the protocol says: to the
    destination that a client has written.
    """
    add = mutation.set_headers.add
    for name, value in headers:
        option = add()
        option.append_action = _OVERWRITE
        header = option.header
        header.key = name
        header.raw_value = value.encode()
    if remove:
        mutation.remove_headers.extend(remove)


def _send_to(
    response: pb.ProcessingResponse, common: pb.CommonResponse, action: AnswerHeaders
) -> None:
    """Put the decision into the metadata too, and make laar's own Envoy recompute the route."""
    known = response.dynamic_metadata.fields[agreed.LB_NAMESPACE].struct_value
    common.clear_route_cache = action.clears_route
    if action.model is not None:
        known.fields[agreed.NAME_KEY].string_value = action.model.encode()
        return
    known.fields[names.DESTINATION].string_value = action.destination.encode()
    if action.patience_s is not None:
        known.fields[names.PATIENCE].string_value = b"%d" % action.patience_s
    for name, value in (*action.retries, *action.engine_headers):
        if name == ":path":  # routes rewrite the path without its query
            name, value = names.PATH, value.partition("?")[0]
        known.fields[name].string_value = value.encode()


def patience(seconds: float) -> bytes:
    """Return a message that makes Envoy wait this long for the answer."""
    response = pb.ProcessingResponse()
    response.override_message_timeout.FromMilliseconds(int(seconds * 1000))
    return response.SerializeToString()


ANSWERS: dict[type, Callable[[Any], bytes]] = {
    AnswerHeaders: _headers_answer,
    AnswerBody: _body_answer,
    AnswerTrailers: lambda action: _PLAIN[f"{action.direction.value}_trailers"],
    Immediate: _immediate_answer,
}
"""Serializers of actions that become messages to Envoy; the driver handles all other actions."""
