"""Replace or add the model in a request body, or add members, keeping all other bytes.

The body is UTF-8 (RFC 8259), with or without a byte order mark.
"""

from __future__ import annotations

import json

import orjson

from laar.errors import RequestError
from laar.protocol.forms import field_span
from laar.protocol.jsonscan import Span, member_spans

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""UTF-8's byte order mark: some editors put it at the start of a file, and engines skip it."""

NOT_AN_OBJECT = "the body must be a JSON object that is valid and not nested too deeply"


def splice_model(body: bytes, name: str, span: Span | None = None) -> bytes:
    """Return the body with its top-level `model` replaced and every other byte unchanged.

    The last of any repeated keys is replaced, since engines use it; a missing key is added. Raise
    `RequestError` if the body is neither an object nor a form with that field.

    Args:
        body: a body accepted by `read_body`: an object, or a form with that field.
        name: the new model name.
        span: span of the value, if known; empty if the body has no `model`.
    """
    field = field_span(body, "model")
    if field is not None:
        return b"%b%b%b" % (body[: field[0]], name.encode(), body[field[1] :])
    start, end = span or model_span(body)
    if start == end:
        end = body.rindex(b"}")
        comma = b"" if body[:end].rstrip().endswith(b"{") else b","
        return b'%b%b"model":%b%b' % (body[:end], comma, orjson.dumps(name), body[end:])
    whole = memoryview(body)  # which is copied once
    return b"".join((whole[:start], orjson.dumps(name), whole[end:]))


def splice_members(body: bytes, members: bytes) -> bytes:
    """Return the body with members before its own, and every other byte unchanged.

    Args:
        body: a body accepted by `read_body`, an object that has none of these members.
        members: the members in JSON, without braces.
    """
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip().startswith(b"}") else b","
    return b"%b%b%b%b" % (body[:start], members, comma, body[start:])


def model_span(body: bytes) -> Span:
    """Return the span of the top-level `model`'s value, quotes included; the last if repeated.

    Return an empty span if the body has no `model`. Raise `RequestError` if the body is not an
    object, not UTF-8, or nested too deeply.
    """
    text = utf8_of(body)
    spans = member_spans(text)
    if spans is None:
        raise RequestError(400, "bad-request", NOT_AN_OBJECT)
    mark = len(body) - len(text)
    start, end = spans.get("model", (0, 0))
    return start + mark, end + mark


def utf8_of(body: bytes) -> bytes:
    """Return the body without a byte order mark.

    Raises:
        RequestError: the body is in a different Unicode encoding, which only some engines accept.
    """
    if not json.detect_encoding(body).startswith("utf-8"):
        raise RequestError(415, "not-utf-8", "the body is not UTF-8; send it as UTF-8")
    return body.removeprefix(BYTE_ORDER_MARK)
