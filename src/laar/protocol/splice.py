"""Changing a request body: the model replaced or added, all other bytes as they came.

The body is UTF-8, as RFC 8259 wants JSON to be sent, with or without a byte order mark. Where the
top-level `model` stands is found by short cuts that cover nearly all clients, and else by the
scanner.
"""

from __future__ import annotations

import json
import re

import numpy as np
import orjson

from laar.errors import RequestError
from laar.protocol.forms import field_span
from laar.protocol.jsonscan import Span, member_spans

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some editors begin a file with it, and engines read on behind it."""

_STRING = rb'("[^"\\]*(?:\\.[^"\\]*)*")'
_MODEL_FIRST = re.compile(rb'\s*\{\s*"model"\s*:\s*' + _STRING)
_MODEL_LATER = re.compile(rb'"model"\s*:\s*' + _STRING)
_MODEL_NO_STRING = re.compile(rb'"model"\s*:\s*[^"\s]')
_TAIL_BYTES = 4096
_LONG_BYTES = 64 << 10
_KEY = b'"model"'
_BACKSLASH = ord("\\")
_SPELT_OUT = b"\\u006"
"""Begins each letter of `model` where a key is written with escapes, which no client does."""


def splice_model(body: bytes, name: str, span: Span | None = None) -> bytes:
    """Return the body with its top-level `model` replaced, every other byte as it was.

    Where the key repeats, the last one is replaced, since it counts; where it is missing, it is
    added.

    Args:
        body: read by `read_body`, so it is an object, or a form with that field.
        name: the new model name.
        span: span of the value, where it is known.

    Raises:
        ValueError: the body is neither.
    """
    field = field_span(body, "model")
    if field is not None:
        return b"%b%b%b" % (body[: field[0]], name.encode(), body[field[1] :])
    span = span or model_span(body)
    if span is None:
        return _with_member(body, b'"model":%b' % orjson.dumps(name))
    start, end = span
    return b"%b%b%b" % (body[:start], orjson.dumps(name), body[end:])


def _with_member(body: bytes, member: bytes) -> bytes:
    """Return the body with one member more, behind all others."""
    text = utf8_of(body)
    end = text.rindex(b"}")
    comma = b"" if text[:end].rstrip().endswith(b"{") else b","
    at = end + len(body) - len(text)
    return b"%b%b%b" % (body[:at], comma + member, body[at:])


def model_span(body: bytes) -> Span | None:
    """Return the span of the top-level `model`'s value, quotes included; the last if repeated.

    Two places cover nearly all clients and cost no second pass: the end of the body and, when no
    `model` can follow it, the very start. Anything else is scanned.

    Returns:
        None where it has none.

    Raises:
        ValueError: it is no object.
    """
    span = _span_in_tail(body)
    if span is not None:
        return span
    first = _MODEL_FIRST.match(body)
    if first and not _stands(_KEY, body, first.end()) and not _stands(_SPELT_OUT, body):
        return first.span(1)
    text = utf8_of(body)
    spans = member_spans(text)
    if spans is None:
        raise ValueError("the body is no JSON object")
    mark = len(body) - len(text)
    span = spans.get("model")
    return None if span is None else (span[0] + mark, span[1] + mark)


def _stands(text: bytes, body: bytes, start: int = 0) -> bool:
    """Return whether a text stands in the body, from a place on.

    In a long body its last four bytes are looked for first, four at a time: half of `find`'s time.
    """
    if len(body) - start > _LONG_BYTES:
        last = np.frombuffer(text[-4:], np.uint32)
        counts = [(at, (len(body) - at) // 4) for at in range(start, start + 4)]
        if not any((np.frombuffer(body, np.uint32, n, at) == last).any() for at, n in counts):
            return False
    return body.find(text, start) >= 0


def _span_in_tail(body: bytes) -> Span | None:
    """Return the value of a top-level `model` in the body's end, if no other can follow it."""
    tail_from = max(1, len(body) - _TAIL_BYTES)
    at = len(body)
    while (at := body.rfind(_KEY, tail_from, at)) >= 0:
        match = _MODEL_LATER.match(body, at) if body[at - 1] != _BACKSLASH else None
        if match and _is_object(b"{" + body[at:]):
            end = match.end()
            follows = _MODEL_NO_STRING.search(body, end) or body.find(_SPELT_OUT, end) >= 0
            return None if follows else match.span(1)
    return None


def _is_object(text: bytes) -> bool:
    """Return whether a tail of a valid object, with a brace before it, is an object.

    Then the tail began at the top level, because only there do the closing brackets balance.
    """
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def utf8_of(body: bytes) -> bytes:
    """Return the body without a byte order mark.

    Raises:
        RequestError: it is in another encoding of Unicode, which some engines read and others
            refuse.
    """
    if not json.detect_encoding(body).startswith("utf-8"):
        raise RequestError(415, "not-utf-8", "the body is not in UTF-8; send it so")
    return body.removeprefix(BYTE_ORDER_MARK)
