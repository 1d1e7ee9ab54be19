"""Replace or add the model in a request body, keeping all other bytes.

The body is UTF-8 (RFC 8259), with or without a byte order mark. The top-level `model` is located by
shortcuts that cover nearly all clients, and otherwise by `laar.protocol.jsonscan`.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import orjson

from laar.errors import RequestError
from laar.protocol.forms import field_span
from laar.protocol.jsonscan import MAX_MEMBERS, Span, has_many_parts, member_spans

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""UTF-8's byte order mark: some editors put it at the start of a file, and engines skip it."""

_KEY = b'"model"'
_MODEL = re.compile(rb'"model"\s*:\s*("[^"\\]*+(?:\\.[^"\\]*+){0,256}")')
"""Matches a name with few escapes; `re` keeps 130 bytes for each until the name ends."""
_MODEL_FIRST = re.compile(rb"\s*\{\s*" + _MODEL.pattern)
_PARSED_BYTES = 1 << 20
"""Maximum size of a part that is parsed to locate the model, in a tenth of the time of a scan. The
model of a longer body is located in a thread, where a scan blocks no other request."""
_BACKSLASH = ord("\\")
_SPELT_OUT = b"\\u006"
"""Start of the escape of any letter in `model`; clients don't escape these letters."""


def splice_model(body: bytes, name: str, span: Span | None = None) -> bytes:
    """Return the body with its top-level `model` replaced and every other byte unchanged.

    The last of any repeated keys is replaced, since engines use it; a missing key is added.

    Args:
        body: a body accepted by `read_body`: an object, or a form with that field.
        name: the new model name.
        span: span of the value, if known; empty if the body has no `model`.

    Raises:
        ValueError, RequestError: the body is neither an object nor a form with that field.
    """
    field = field_span(body, "model")
    if field is not None:
        return b"%b%b%b" % (body[: field[0]], name.encode(), body[field[1] :])
    start, end = span or model_span(body)
    if start == end:
        end = body.rindex(b"}")
        comma = b"" if body[:end].rstrip().endswith(b"{") else b","
        return b'%b%b"model":%b%b' % (body[:end], comma, orjson.dumps(name), body[end:])
    return b"%b%b%b" % (body[:start], orjson.dumps(name), body[end:])


def model_span(body: bytes) -> Span:
    """Return the span of the top-level `model`'s value, quotes included; the last if repeated.

    The bodies of nearly all clients need no scan: `model` is the first member, or only members of
    the outermost object follow it. Tools may have a property of that name.

    Returns:
        An empty span if the body has no `model`.

    Raises:
        RequestError: 400 or 415: the body is not an object of few members, or not UTF-8.
    """
    first, at = _MODEL_FIRST.match(body), body.rfind(_KEY)  # twice as fast as `find`
    last = _MODEL.match(body, at) if at > 0 and body[at - 1] != _BACKSLASH else None
    if last and body.rfind(_SPELT_OUT, last.end()) < 0:
        is_first = first is not None and first.end() == last.end()
        if is_first or _members(b"{" + body[at:]):  # if nested, the brackets do not balance
            return last.span(1)
    others = _members(b'{"":0' + body[first.end() :]) if first else None
    if first and others and "model" not in others:
        return first.span(1)
    text = utf8_of(body)
    spans = member_spans(text)
    if spans is None:
        what = f"the body must be a JSON object with fewer than {MAX_MEMBERS:,} members"
        raise RequestError(400, "bad-request", what)
    mark = len(body) - len(text)
    start, end = spans.get("model", (0, 0))
    return start + mark, end + mark


def _members(text: bytes) -> dict[str, Any] | None:
    """Return the members of an object; None if it is no valid JSON, or is not to be parsed."""
    with suppress(orjson.JSONDecodeError):
        if len(text) <= _PARSED_BYTES and not has_many_parts(text):
            members: dict[str, Any] = orjson.loads(text)
            return members
    return None


def utf8_of(body: bytes) -> bytes:
    """Return the body without a byte order mark.

    Raises:
        RequestError: the body is in a different Unicode encoding, which only some engines accept.
    """
    if not json.detect_encoding(body).startswith("utf-8"):
        raise RequestError(415, "not-utf-8", "the body is not UTF-8; send it as UTF-8")
    return body.removeprefix(BYTE_ORDER_MARK)
