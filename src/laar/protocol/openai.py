"""Request bodies: what a picker needs to know of them, read in one pass.

Chat completions, completions, responses and embeddings as OpenAI defines them, and Anthropic's
messages. Read are the model, the prompt's texts in the order the engine will see them, the stream
flag, the limit on the answer, tools and the cache salt; nothing else is looked at, so parameters
that are new tomorrow pass untouched.

The engine judges a body, not the picker. What Python's JSON takes is taken here too: lone
surrogates, NaN, UTF-16, any depth. A prompt in a form that is not known, or of too many parts to be
built here, is priced by its length. Only a body that is no JSON object, or whose `model` is no
string, gets a 400. Duplicate keys mean the last one, as they do to the engines behind.

The body is never written again. Where the endpoint knows the model under another name, the value of
the top-level `model` is spliced and every other byte stays as the client sent it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson
import xxhash

from laar.core.request import Api
from laar.errors import RequestError
from laar.protocol.jsonscan import Span, member_spans
from laar.protocol.sessions import session_of_body
from laar.protocol.splice import (
    BYTE_ORDER_MARK,
    model_span,
    set_priority,
    splice_model,
    utf8_of,
)

__all__ = [
    "ASIDE_BYTES",
    "SUFFIXES",
    "Body",
    "api_of",
    "marks_of",
    "read_body",
    "response_of",
    "set_priority",
    "splice_model",
    "try_read",
]

ASIDE_BYTES = 256 << 10
"""Longest body that is read between two messages of other streams: a few milliseconds. A longer
one is read on a thread."""

MAX_PARTS = 200_000
"""Values of a body that are built, by the estimate of `_has_many_parts`: 30 ms, during which no
other request is served, thread or not. Ten million characters of prose have fewer."""

MAX_SPANS = 20_000
"""Texts of a prompt that are looked at one by one, 10 ms; a long conversation has a thousand."""

MAX_NESTED = 4
"""Levels of parts in parts that are looked into; the APIs have two."""

MAX_LIMIT_TOKENS = 1 << 31

_COUNTED_BYTES = 1 << 20
_MAX_SCALAR_BYTES = 4096
_READ_AT_LENGTH = (
    "model",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "cache_salt",
)

SUFFIXES: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", Api.CHAT),
    ("/completions", Api.COMPLETIONS),
    ("/responses", Api.RESPONSES),
    ("/embeddings", Api.EMBEDDINGS),
    ("/messages", Api.MESSAGES),
    ("/invocations", Api.CHAT),  # SageMaker's name for any of them; other forms go by length
)


_SYSTEM_CHARS = 200  # that are kept: what tasks are told by
_MARK_CHARS = 32
_MANY_TURNS = 64
_API_MARKS = {api: f"api={api}" for api in Api}


@dataclass(slots=True, kw_only=True)
class Body:
    """What was read of a body; see `laar.core.request.Request` for the fields.

    `model` is empty where the body names none. `model_span` is where its value stands in the bytes,
    if that was looked for.
    """

    model: str
    spans: tuple[str, ...] = ()
    question: str = ""
    system: str = ""
    marks: tuple[str, ...] = ()
    chars: int = 0
    stream: bool = False
    max_tokens: int | None = None
    salt: str = ""
    model_span: Span | None = None
    session: str = ""
    previous: str = ""


def api_of(path: str) -> Api:
    """The body format that a request path stands for; unknown paths are opaque."""
    path = path.partition("?")[0]
    if "%" in path:  # as the engine will see it, lest a spelling go round the queue
        path = unquote(path)
    path = path.rstrip("/")
    for suffix, api in SUFFIXES:
        if path.endswith(suffix):
            return api
    return Api.OPAQUE


_STORED = re.compile(r"/responses/([^/?]{1,256})(?:/[a-z_]+)?/?(?:\?|$)")


def response_of(path: str) -> str:
    """The stored answer that a request path names: to get, cancel or delete it; else empty."""
    found = _STORED.search(path)
    return found[1] if found else ""


def read_body(api: Api, body: bytes) -> Body:
    """Reads a body; of an opaque one only the model's name, where there is one.

    Raises:
        RequestError: 400 with what is wrong; the text holds nothing of the prompt. Never for an
            opaque body.
    """
    if api is Api.OPAQUE:
        return Body(model=_peek(body))
    document, is_whole = _document(body)
    model = document.get("model")
    if model is None:
        model = ""
    if not isinstance(model, str):
        raise _bad("`model` must be a string")
    spans = _Spans(body)
    try:
        if is_whole:
            _READERS[api](document, spans)
            chars = sum(map(len, spans.texts))
    except _UnknownPromptError:
        is_whole = False
    if not is_whole:
        spans = _Spans(body)
        chars = len(body)
    limit = document.get("max_completion_tokens", document.get("max_tokens"))
    if limit is None:
        limit = document.get("max_output_tokens")
    salt = document.get("cache_salt")
    previous = document.get("previous_response_id")
    return Body(
        model=_text(model),
        spans=tuple(map(_text, spans.texts)),
        question=_text(spans.question),
        system=_text(spans.system),
        marks=marks_of(api, document, spans.messages),
        chars=chars,
        stream=document.get("stream") is True,
        max_tokens=min(limit, MAX_LIMIT_TOKENS) if isinstance(limit, int) and limit > 0 else None,
        salt=_text(salt) if isinstance(salt, str) else "",
        model_span=model_span(body) if model and len(body) > ASIDE_BYTES else None,
        session=session_of_body(document),
        previous=_text(previous) if isinstance(previous, str) else "",
    )


def marks_of(api: Api, document: Mapping[str, Any], messages: int) -> tuple[str, ...]:
    """The shape of a request in a few words: its route, tools, the format it wants, its turns."""
    marks = [_API_MARKS[api], f"turns={min(messages, _MANY_TURNS).bit_length()}"]
    if document.get("tools"):
        marks.append("tools")
    wanted = document.get("response_format")
    if isinstance(wanted, dict) and isinstance(wanted.get("type"), str):
        marks.append(f"format={wanted['type'][:_MARK_CHARS]}")
    return tuple(marks)


def try_read(api: Api, body: bytes) -> Body | RequestError:
    """As `read_body`, with the error as a value."""
    try:
        return read_body(api, body)
    except RequestError as error:
        return error


def _peek(body: bytes) -> str:
    if body[:64].lstrip()[:1] != b"{":
        return ""
    try:
        model = _document(body)[0].get("model")
    except RequestError:
        return ""
    return _text(model) if isinstance(model, str) else ""


def _document(body: bytes) -> tuple[dict[str, Any], bool]:
    """The body as an object, and whether that is all of it.

    Raises:
        RequestError: it is no JSON object.
    """
    if len(body) > ASIDE_BYTES and _has_many_parts(body):
        return _scalars(body), False
    try:
        document = orjson.loads(body[3:] if body.startswith(BYTE_ORDER_MARK) else body)
    except orjson.JSONDecodeError as error:
        try:
            document = json.loads(body)
        except RecursionError:
            return _scalars(body), False
        except ValueError:
            raise _bad(f"the body is not valid JSON: {_without_content(error)}") from None
    if not isinstance(document, dict):
        raise _bad("the body must be a JSON object")
    return document, True


def _has_many_parts(body: bytes) -> bool:
    """Whether building the body's values would take longer than others can wait.

    Signs in its texts count as well; their share is what prose has.
    """
    parts = 0
    for at in range(0, len(body), _COUNTED_BYTES):  # another thread may run in between
        here = at, at + _COUNTED_BYTES
        parts += body.count(b"{", *here) + 2 * body.count(b"[", *here)
        parts += (body.count(b'"', *here) + body.count(b",", *here)) // 4
        if parts > MAX_PARTS:
            return True
    return False


def _scalars(body: bytes) -> dict[str, Any]:
    """Of the members that say how to answer, those that are no lists or objects.

    Raises:
        RequestError: the body is no object.
    """
    text = utf8_of(body)
    spans = member_spans(text)
    if spans is None:
        raise _bad("the body must be a JSON object of a sensible number of members")
    found: dict[str, Any] = {}
    for name in _READ_AT_LENGTH:
        start, end = spans.get(name, (0, 0))
        if text[start:end][:1] in (b"{", b"["):
            found[name] = []  # of no use, as whatever is in it
        elif 0 < end - start <= _MAX_SCALAR_BYTES:
            try:
                found[name] = json.loads(text[start:end])
            except ValueError:
                raise _bad(f"`{name}` is not valid JSON") from None
    return found


def _text(text: str) -> str:
    """The text, fit for UTF-8: lone surrogates, which JSON can spell, become question marks."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _bad(message: str) -> RequestError:
    return RequestError(400, "bad-request", message)


def _without_content(error: orjson.JSONDecodeError) -> str:
    """The parser's complaint and place; never the text around it."""
    return f"{error.msg.partition(':')[0]} (character {error.pos})"


class _UnknownPromptError(Exception):
    """The prompt has a form, or a number of parts, that is not looked into."""


class _Spans:
    """Collects the prompt's texts, and which of them was the user's last.

    Raises:
        _UnknownPromptError: there are more than `MAX_SPANS`.
    """

    def __init__(self, body: bytes) -> None:
        self.texts: list[str] = []
        self.question = ""
        self.system = ""
        self.messages = 0
        self._body = body

    def add(self, texts: list[str]) -> None:
        """Texts as they stand."""
        self.texts += texts
        if len(self.texts) > MAX_SPANS:
            raise _UnknownPromptError

    def message(self, role: object, content: object) -> None:
        """A message: its role as a marker, then its texts."""
        texts = [content] if isinstance(content, str) else list(self._texts(content))
        self.add([f"\x1e{role if isinstance(role, str) else ''}\x1f", *texts])
        self.messages += 1
        if texts and role in ("system", "developer") and not self.system:
            self.system = texts[0][:_SYSTEM_CHARS]
        if texts and role in ("user", None):
            self.question = texts[-1]

    def json(self, value: object) -> None:
        """Anything structured that engines render into the prompt, such as tools."""
        if value:
            self.add([self._rendered(value).decode()])

    def _texts(self, content: object, level: int = 0) -> Iterator[str]:
        """Texts of a message's content: a string, or parts; other parts stand as their digest."""
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            if len(content) > MAX_SPANS:
                raise _UnknownPromptError
            for part in content:
                if isinstance(part, str):
                    yield part
                elif isinstance(part, dict):
                    text = part.get("text")
                    nested = part.get("content")
                    if isinstance(text, str):
                        yield text
                    elif isinstance(nested, str | list) and level < MAX_NESTED:
                        yield from self._texts(nested, level + 1)  # an Anthropic tool_result
                    elif part.get("type") == "tool_use":
                        yield self._rendered([part.get("name"), part.get("input")]).decode()
                    else:
                        if "cache_control" in part:  # a mark for the API, which moves turn by turn
                            part = {key: part[key] for key in part if key != "cache_control"}
                        yield f"\x1d{xxhash.xxh3_128_hexdigest(self._rendered(part))}"

    def _rendered(self, value: object) -> bytes:
        try:
            return orjson.dumps(value)
        except orjson.JSONEncodeError:  # it reads deeper than it writes, and no lone surrogates
            pass
        try:
            return json.dumps(value).encode()
        except RecursionError:  # stands for itself: no other prompt is like it
            return xxhash.xxh3_128_hexdigest(self._body).encode()


def _chat(document: dict[str, Any], spans: _Spans) -> None:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _UnknownPromptError
    spans.json(document.get("tools"))
    system = document.get("system")  # Anthropic keeps it beside the messages
    if system is not None:
        spans.message("system", _without_attribution(system))
    for message in messages:
        if not isinstance(message, dict):
            raise _UnknownPromptError
        spans.message(message.get("role"), message.get("content"))
        spans.json(message.get("tool_calls"))


_ATTRIBUTION = "x-anthropic-billing-header:"
"""How the line begins that coding agents put first into the system prompt; it ends in a number that
changes with every request (``cch=``)."""


def _without_attribution(system: object) -> object:
    """The system prompt without the attribution line, as vLLM and llm-d read it.

    With it no two requests of a session would share a prefix, which in the engine they do.
    """
    if isinstance(system, str):
        return _line_off(system)
    if not isinstance(system, list):
        return system
    kept: list[object] = []
    for part in system:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str) and text.startswith(_ATTRIBUTION):
            if rest := _line_off(text):
                kept.append(rest)
        else:
            kept.append(part)
    return kept


def _line_off(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_ATTRIBUTION) else text


def _completions(document: dict[str, Any], spans: _Spans) -> None:
    _prompt(document, "prompt", spans)


def _embeddings(document: dict[str, Any], spans: _Spans) -> None:
    if "input" in document:
        _prompt(document, "input", spans)
    else:  # vLLM's form for chat templates and images
        _chat(document, spans)


def _prompt(document: dict[str, Any], key: str, spans: _Spans) -> None:
    prompt = document.get(key)
    if not isinstance(prompt, str | list) or not prompt:
        raise _UnknownPromptError  # such as `prompt_embeds`
    if isinstance(prompt, list) and not isinstance(prompt[0], str):
        spans.json(prompt)  # token ids: their digits are as good a prefix as their text
    else:
        texts = [prompt] if isinstance(prompt, str) else [t for t in prompt if isinstance(t, str)]
        spans.add(texts)
        spans.question = texts[-1] if texts else ""


def _responses(document: dict[str, Any], spans: _Spans) -> None:
    given = document.get("input")
    if not isinstance(given, str | list):
        raise _UnknownPromptError
    spans.json(document.get("tools"))
    instructions = document.get("instructions")
    if isinstance(instructions, str):
        spans.message("system", instructions)
    if isinstance(given, str):
        spans.message("user", given)
        return
    for item in given:
        if isinstance(item, dict) and "content" in item:
            spans.message(item.get("role"), item["content"])
        else:
            spans.json(item)


_READERS: dict[Api, Callable[[dict[str, Any], _Spans], None]] = {
    Api.CHAT: _chat,
    Api.MESSAGES: _chat,
    Api.COMPLETIONS: _completions,
    Api.EMBEDDINGS: _embeddings,
    Api.RESPONSES: _responses,
}
