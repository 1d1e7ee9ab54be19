"""Read the fields that a picker needs from request bodies, in one pass.

This supports OpenAI's chat completions, completions, responses and embeddings, and Anthropic's
messages. It reads the model, the prompt's texts in the order seen by the engine, the stream flag,
the token limit, tools and the cache salt. All other fields are ignored, so new ones pass unchanged.

The engine validates the body, not the picker. The reader accepts whatever Python's JSON parser does
in UTF-8 (RFC 8259): lone surrogates, NaN, any depth. A prompt in an unknown form, or with too many
parts to parse here, is priced by its length. A body that is not a JSON object, or whose `model` is
not a string, gets a 400; a compressed or UTF-16 body gets a 415. If a key is repeated, the last
value is used, as in engines.

The body is never re-serialized. If the endpoint serves the model under a different name, only the
value of the top-level `model` is replaced; every other byte is kept.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from laar.errors import RequestError
from laar.protocol.forms import field_span
from laar.protocol.jsonscan import (
    MAX_AT_ONCE_BYTES,
    SHORT_BYTES,
    CutText,
    Span,
    has_many_parts,
    is_quick,
    member_spans,
    parse_in_pieces,
    without_lone_surrogates,
)
from laar.protocol.marks import Marks
from laar.protocol.prompt import READERS, PromptSpans, UnknownPromptError
from laar.protocol.reserved import DENIED, HARMLESS, check_keys, check_members
from laar.protocol.sessions import NAMELESS, UNNAMED, Named, conversation_of, session_of_body
from laar.protocol.splice import BYTE_ORDER_MARK, NOT_AN_OBJECT, model_span, utf8_of
from laar.request import LIMITS, SAMPLING, Api, Request, is_reproducible

ASIDE_BYTES = 1 << 20
"""Maximum size of a body that is read on the event loop; reading takes a millisecond or two. Longer
bodies are read in a thread; for shorter ones, that would cost more than it saves other streams."""

MAX_LIMIT_TOKENS = 1 << 31
MAX_ANSWERS = 128
"""Maximum number of a request's answers that count, as in OpenAI's API."""

_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""First bytes of gzip and zstd; JSON can't begin with them."""

_MAX_SCALAR_BYTES = 4096
_SAMPLING = "sampling_params"
_COUNTS = ("n", "best_of", "n_cmpl")
_COUNTED = frozenset((*_COUNTS, _SAMPLING))
_LIMITS = frozenset((*LIMITS, _SAMPLING))
_SAMPLES = frozenset((*SAMPLING, _SAMPLING))
_READ_AT_LENGTH = {"model", "stream", *LIMITS, *SAMPLING, "cache_salt", "store", "background", "n"}
_ACTS = frozenset(("store", "background", "tools"))
_HARMLESS_TOOLS = ("function", "custom", "local_shell", "web_search")
"""Types of tools that clients run, or that only read."""

_OPAQUE, _RESPONSES = Api.OPAQUE, Api.RESPONSES
_TRUE = (True, "true", "True", "1", "on", "yes")  # as Python's engines read them
_starts_object = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{").match
_UNREAD = PromptSpans(b"")


@dataclass(slots=True, kw_only=True)
class Body(Request):
    """A request as its body gives it, to be completed from the headers.

    `model_span` is the span of the model's name, if it was located; empty if there is none.
    `acts` if the body asks for more than an answer: to keep it, to go on in the background, to call
    tools. `document` is the body as parsed by `orjson`, until the request is complete; None if it
    was parsed otherwise. `members` are the names of its members; empty if it is opaque.
    """

    id: str = ""
    model_span: Span | None = None
    acts: bool = False
    document: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    members: Collection[str] = field(default=(), repr=False, compare=False)


def read_body(api: Api, body: bytes) -> Body:
    """Read a body; if it is opaque, read only the model's name, if any.

    Raises:
        RequestError: 400 or 415; its message contains nothing from the prompt. An opaque body is
            refused only if it is compressed, UTF-16 JSON, a form that can't be read, a long
            object with too many members, or names hosts for the engine. In an engine's own form,
            it is opaque unless it is an object.
    """
    if api is _OPAQUE or (api is Api.OTHER and not _starts_object(body)):
        return _opaque(body)
    document, is_plain, members = _document(body)
    named = document.get("model")
    model = "" if named is None else named
    if not isinstance(model, str):
        raise _bad("`model` must be a string")
    spans, chars = _UNREAD, len(body)
    try:
        found = PromptSpans(body)
        READERS[api](document, found)
        spans, chars = found, sum(map(len, found.texts))
        if len(body) > MAX_AT_ONCE_BYTES:
            chars = _uncut(found, chars)
    except UnknownPromptError:  # also if the prompt has too many parts to be read
        pass
    salt, previous = document.get("cache_salt"), document.get("previous_response_id")
    conversation = conversation_of(document) if "conversation" in document else ""
    named = Named(conversation, "conversation") if conversation else UNNAMED
    if not conversation and not NAMELESS.issuperset(document):
        named = session_of_body(document)
    times = 1 if _COUNTED.isdisjoint(document) else _answers(document)
    read = Body(
        api=api,
        model=model,
        spans=tuple(spans.texts),
        question=spans.question,
        marks=Marks((document,)),  # type: ignore[arg-type]  # it yields its marks
        chars=chars,
        tokens=spans.tokens,
        longest_share=spans.longest_share,
        stream=document.get("stream") in _TRUE,
        max_tokens=None if _LIMITS.isdisjoint(document) else _limit(document),
        answers=min(spans.prompts * times, MAX_ANSWERS),
        reproducible=not _SAMPLES.isdisjoint(document) and is_reproducible(document),
        salt=salt if isinstance(salt, str) else "",
        model_span=model_span(body) if len(body) > ASIDE_BYTES else None,  # else when needed
        acts=(api is _RESPONSES or not _ACTS.isdisjoint(document)) and _acts(api, document),
        session=named.session,
        named_by=named.field,
        hints=named.hints,
        response_id=previous if isinstance(previous, str) else "",
        conversation_id=conversation,
        document=document if is_plain else None,
        members=members,
    )
    if not is_plain:  # `orjson` rejects lone surrogates
        read.model, read.question = _text(model), _text(read.question)
        read.salt, read.response_id = _text(read.salt), _text(read.response_id)
        read.spans = tuple(map(_text, read.spans))
    return read


def _opaque(body: bytes) -> Body:
    if (span := field_span(body, "model")) is not None:
        name = body[span[0] : min(span[1], span[0] + _MAX_SCALAR_BYTES)]
        return Body(api=_OPAQUE, model=name.decode(errors="ignore"), model_span=span)
    peeked = _peek(body)
    span = model_span(body) if peeked and len(body) > ASIDE_BYTES else None
    return Body(api=_OPAQUE, model=peeked, model_span=span)


def _uncut(spans: PromptSpans, chars: int) -> int:
    """Return the length of texts of which some were cut; drop those that no engine takes."""
    chars += sum(text.chars for text in spans.texts if isinstance(text, CutText))
    if chars > MAX_AT_ONCE_BYTES:
        spans.texts.clear()
    return chars


def _acts(api: Api, document: Mapping[str, Any]) -> bool:
    stored = document.get("store")
    if document.get("background") or (api is _RESPONSES if stored is None else stored):
        return True
    # In other APIs the client runs all tools.
    tools = document.get("tools") if api is _RESPONSES else ()
    return any(
        isinstance(tool, dict) and not str(tool.get("type")).startswith(_HARMLESS_TOOLS)
        for tool in (tools if isinstance(tools, list) else ())
    )


def _answers(document: Mapping[str, Any]) -> int:
    """Return the number of answers to each prompt: engines may generate more than they return."""
    given = document.get(_SAMPLING) or document
    asked = [given.get(name) for name in _COUNTS] if isinstance(given, dict) else []
    return max((count for count in asked if type(count) is int), default=1) or 1


def _limit(document: Mapping[str, Any]) -> int | None:
    """Return the first token limit that is set; null means unset, as in the engines."""
    if isinstance(inner := document.get(_SAMPLING), dict):  # in /inference/v1/generate
        document = inner
    limits = (document.get(name) for name in LIMITS)
    given = next((limit for limit in limits if limit is not None), None)
    try:  # engines in Python read "8000" and 8000.0 too
        limit = 0 if isinstance(given, bool) else int(given or 0)
    except (TypeError, ValueError, OverflowError):
        return None
    return min(limit, MAX_LIMIT_TOKENS) if limit > 0 else None


def try_read(api: Api, body: bytes) -> Body | RequestError:
    """Return the result of `read_body`, or its error as a value."""
    try:
        return read_body(api, body)
    except RequestError as error:
        return error


def _peek(body: bytes) -> str:
    """Return the model that an opaque body names; empty if it is not a JSON object.

    Raise `RequestError`: 415 if the body is compressed or UTF-16, since it may name any model;
    400 if it names hosts for the engine.
    """
    begin = body[:64].decode(json.detect_encoding(body), "ignore").lstrip("\ufeff \t\r\n")
    if begin and begin[0] != "{" and not body.startswith(_COMPRESSED):
        return ""
    try:
        model = _document(body)[0].get("model")
    except RequestError as error:
        is_utf_8 = json.detect_encoding(body).startswith("utf-8")
        if error.reason == DENIED or body.startswith(_COMPRESSED) or not is_utf_8:
            raise
        return ""  # binary data, or JSON before it, as in KServe's tensors
    return _text(model) if isinstance(model, str) else ""


def _document(body: bytes) -> tuple[dict[str, Any], bool, Collection[str]]:
    """Return the body as an object, whether `orjson` accepts it, and its members' names.

    Raise `RequestError` if the body is not a JSON object, or names hosts for the engine.
    """
    if body.startswith(_COMPRESSED):
        raise RequestError(415, "compressed-body", "the body is compressed; send it as plain JSON")
    is_plain = len(body) <= SHORT_BYTES or is_quick(body)
    try:
        document, members = (orjson.loads(body), None) if is_plain else _long_document(body)
    except orjson.JSONDecodeError as error:
        utf8_of(body)  # raises if it is not UTF-8
        is_plain = False
        try:
            document, members = json.loads(body), None
        except UnicodeDecodeError:
            raise RequestError(415, "not-utf-8", "the body is compressed or not UTF-8") from None
        except RecursionError:
            raise _bad(NOT_AN_OBJECT) from None
        except ValueError:
            what = error.msg.partition(":")[0]  # without any text from the body
            raise _bad(f"the body is not valid JSON: {what} (character {error.pos})") from None
    if not isinstance(document, dict):
        raise _bad("the body must be a JSON object")
    if not HARMLESS.issuperset(document):
        check_members(document)
    return document, is_plain, document if members is None else members


def _long_document(body: bytes) -> tuple[Any, Collection[str] | None]:
    """Return what a long body contains: if it can't be parsed in pieces, only its scalars.

    Then the names of all its members are returned as well.
    """
    if not has_many_parts(body):
        text = body.removeprefix(BYTE_ORDER_MARK)
        for mended in (bytes, without_lone_surrogates):
            with contextlib.suppress(ValueError, RecursionError):
                return parse_in_pieces(mended(text)), None
    check_keys(body)
    return _scalars(body)


def _scalars(body: bytes) -> tuple[dict[str, Any], Collection[str]]:
    """Read the members in `_READ_AT_LENGTH` that are scalars, and the names of all.

    Raise `RequestError` if the body is not an object.
    """
    text = utf8_of(body)
    spans = member_spans(text)
    if spans is None:
        raise _bad(NOT_AN_OBJECT)
    found: dict[str, Any] = {}
    for name in spans.keys() & _READ_AT_LENGTH:
        start, end = spans[name]
        if text[start] in b"{[":
            found[name] = []  # not a scalar: its content is not used
        elif end - start <= _MAX_SCALAR_BYTES:
            try:
                found[name] = json.loads(text[start:end])
            except ValueError:
                raise _bad(f"`{name}` is not valid JSON") from None
    return found, spans.keys()


def _text(text: str) -> str:
    """Replace lone surrogates, which JSON allows, with `?`."""
    return text.encode("utf-8", "replace").decode()


def _bad(message: str) -> RequestError:
    return RequestError(400, "bad-request", message)
