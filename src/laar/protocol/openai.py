"""Request bodies: what a picker needs to know of them, read in one pass.

Chat completions, completions, responses and embeddings as OpenAI defines them, and Anthropic's
messages. Read are the model, the prompt's texts in the order the engine will see them, the stream
flag, the limit on the answer, tools and the cache salt; nothing else is looked at, so parameters
that are new tomorrow pass untouched.

Leniency ends where routing would be a guess: a body that is no JSON object, has no string `model`
or no prompt is the client's mistake and gets a 400. Duplicate keys mean the last one, as they do to
the engines behind. Whatever else is odd is left for the engine to judge.

The body is never written again. Where the endpoint knows the model under another name, the value of
the top-level `model` is spliced and every other byte stays as the client sent it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import xxhash

from laar.core.request import Api
from laar.errors import RequestError

__all__ = ["SUFFIXES", "Body", "api_of", "marks_of", "read_body", "set_priority", "splice_model"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some editors begin a file with it, and engines read on behind it."""

SUFFIXES: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", Api.CHAT),
    ("/completions", Api.COMPLETIONS),
    ("/responses", Api.RESPONSES),
    ("/embeddings", Api.EMBEDDINGS),
    ("/messages", Api.MESSAGES),
)


_SYSTEM_CHARS = 200  # that are kept: what tasks are told by
_MARK_CHARS = 32
_MANY_TURNS = 64


@dataclass(slots=True, kw_only=True)
class Body:
    """What was read of a body; see `laar.core.request.Request` for the fields."""

    model: str
    spans: tuple[str, ...]
    question: str
    system: str
    marks: tuple[str, ...]
    stream: bool
    max_tokens: int | None
    salt: str


def api_of(path: str) -> Api:
    """The body format that a request path stands for; unknown paths are opaque."""
    path = path.partition("?")[0].rstrip("/")
    for suffix, api in SUFFIXES:
        if path.endswith(suffix):
            return api
    return Api.OPAQUE


def read_body(api: Api, body: bytes) -> Body:
    """Reads a body.

    Raises:
        RequestError: 400 with what is wrong; the text holds nothing of the prompt.
    """
    try:
        document = orjson.loads(body[3:] if body.startswith(_BYTE_ORDER_MARK) else body)
    except orjson.JSONDecodeError as error:
        raise _bad(f"the body is not valid JSON: {_without_content(error)}") from None
    if not isinstance(document, dict):
        raise _bad("the body must be a JSON object")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise _bad("`model` must be given, as a string that is not empty")
    spans = _Spans()
    _READERS[api](document, spans)
    limit = document.get("max_completion_tokens", document.get("max_tokens"))
    if limit is None:
        limit = document.get("max_output_tokens")
    salt = document.get("cache_salt")
    return Body(
        model=model,
        spans=tuple(spans.texts),
        question=spans.question,
        system=spans.system,
        marks=marks_of(api, document, spans.messages),
        stream=document.get("stream") is True,
        max_tokens=limit if isinstance(limit, int) and limit > 0 else None,
        salt=salt if isinstance(salt, str) else "",
    )


def marks_of(api: Api, document: Mapping[str, Any], messages: int) -> tuple[str, ...]:
    """The shape of a request in a few words: its route, tools, the format it wants, its turns."""
    marks = [f"api={api}", f"turns={min(messages, _MANY_TURNS).bit_length()}"]
    if document.get("tools"):
        marks.append("tools")
    wanted = document.get("response_format")
    if isinstance(wanted, dict) and isinstance(wanted.get("type"), str):
        marks.append(f"format={wanted['type'][:_MARK_CHARS]}")
    return tuple(marks)


def peek_model(body: bytes) -> str:
    """The `model` of a body in no format we know; empty when there is none to be read."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    model = document.get("model") if isinstance(document, dict) else None
    return model if isinstance(model, str) else ""


def _bad(message: str) -> RequestError:
    return RequestError(400, "bad-request", message)


def _without_content(error: orjson.JSONDecodeError) -> str:
    """The parser's complaint and place; never the text around it."""
    return f"{error.msg.partition(':')[0]} (character {error.pos})"


class _Spans:
    """Collects the prompt's texts, and which of them were the system's and the user's last."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.question = ""
        self.system = ""
        self.messages = 0

    def message(self, role: object, content: object) -> None:
        """A message: its role as a marker, then its texts."""
        self.texts.append(f"\x1e{role if isinstance(role, str) else ''}\x1f")
        texts = list(_texts(content))
        self.texts.extend(texts)
        self.messages += 1
        if texts and role in ("system", "developer") and not self.system:
            self.system = texts[0][:_SYSTEM_CHARS]
        if texts and role in ("user", None):
            self.question = texts[-1]

    def json(self, value: object) -> None:
        """Anything structured that engines render into the prompt, such as tools."""
        if value:
            self.texts.append(_rendered(value).decode())


def _texts(content: object) -> Iterator[str]:
    """Texts of a message's content: a string, or parts; other parts stand as their digest."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, str):
                yield part
            elif isinstance(part, dict):
                text = part.get("text")
                nested = part.get("content")
                if isinstance(text, str):
                    yield text
                elif isinstance(nested, str | list):  # an Anthropic tool_result
                    yield from _texts(nested)
                else:
                    yield f"\x1d{xxhash.xxh3_128_hexdigest(_rendered(part))}"


def _rendered(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # it reads deeper than it writes
        raise _bad("the prompt's parts are nested too deeply") from None


def _chat(document: dict[str, Any], spans: _Spans) -> None:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("`messages` must be a list that is not empty")
    spans.json(document.get("tools"))
    system = document.get("system")  # Anthropic keeps it beside the messages
    if system is not None:
        spans.message("system", system)
    for message in messages:
        if not isinstance(message, dict):
            raise _bad("every item of `messages` must be an object")
        spans.message(message.get("role"), message.get("content"))
        spans.json(message.get("tool_calls"))


def _completions(document: dict[str, Any], spans: _Spans) -> None:
    _prompt(document, "prompt", spans)


def _embeddings(document: dict[str, Any], spans: _Spans) -> None:
    _prompt(document, "input", spans)


def _prompt(document: dict[str, Any], key: str, spans: _Spans) -> None:
    prompt = document.get(key)
    if not isinstance(prompt, str | list) or not prompt:
        raise _bad(f"`{key}` must be a string or a list that is not empty")
    if isinstance(prompt, list) and not isinstance(prompt[0], str):
        spans.json(prompt)  # token ids: their digits are as good a prefix as their text
    else:
        texts = [prompt] if isinstance(prompt, str) else [t for t in prompt if isinstance(t, str)]
        spans.texts.extend(texts)
        spans.question = texts[-1] if texts else ""


def _responses(document: dict[str, Any], spans: _Spans) -> None:
    given = document.get("input")
    if not isinstance(given, str | list) or not given:
        raise _bad("`input` must be a string or a list that is not empty")
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


# -- the splice --------------------------------------------------------------------------------

_MODEL_FIRST = re.compile(rb'\s*\{\s*"model"\s*:\s*"((?:[^"\\]|\\.)*)"')
_MODEL_LATER = re.compile(rb'(?<!\\)"model"\s*:\s*"((?:[^"\\]|\\.)*)"')
_TAIL_BYTES = 4096


def splice_model(body: bytes, name: str) -> bytes:
    """The body with its top-level `model` replaced, every other byte as it was.

    The body must have been read by `read_body`, so it is a valid object with a string `model`.
    """
    start, end = _model_span(body)
    return b"%b%b%b" % (body[:start], orjson.dumps(name), body[end:])


def set_priority(body: bytes, priority: int) -> bytes:
    """The body with a last top-level `priority`, every other byte as it was.

    Engines take the last of several, so a client's own counts no more. The body must have been read
    by `read_body`: an object that is not empty.
    """
    end = body.rindex(b"}")
    return b'%b,"priority":%d%b' % (body[:end], priority, body[end:])


def _model_span(body: bytes) -> tuple[int, int]:
    """Where the value of the top-level `model` stands, quotes included; the last if repeated.

    Two places cover nearly all clients and cost no second pass: the end of the body and, when no
    `model` can follow it, the very start. Anything else is walked by the standard scanner.
    """
    tail_from = max(0, len(body) - _TAIL_BYTES)
    for match in reversed(list(_MODEL_LATER.finditer(body, tail_from))):
        if _is_object(b"{" + body[match.start() :]):
            return match.start(1) - 1, match.end(1) + 1
    first = _MODEL_FIRST.match(body)
    if first and body.find(b'"model"', first.end()) < 0:
        return first.start(1) - 1, first.end(1) + 1
    return _walk(body)


def _is_object(text: bytes) -> bool:
    """Whether a tail of a valid object, with a brace before it, is an object.

    Then the tail began at the top level, because only there do the closing brackets balance.
    """
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


_GAP = re.compile(r"[\s,:]*")


def _walk(body: bytes) -> tuple[int, int]:
    """Walks the top-level members with the standard library's scanner."""
    text = body.decode("utf-8")
    scan = json.JSONDecoder().raw_decode

    def skip(at: int) -> int:
        gap = _GAP.match(text, at)
        return gap.end() if gap else at

    span = (0, 0)
    at = skip(text.index("{") + 1)
    while text[at] != "}":
        key, at = scan(text, at)
        start = skip(at)
        _, end = scan(text, start)
        if key == "model":
            span = (start, end)
        at = skip(end)
    return len(text[: span[0]].encode()), len(text[: span[1]].encode())
