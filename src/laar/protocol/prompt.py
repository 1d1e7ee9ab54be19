"""Extract the texts of a prompt, in the order in which the engine will see them.

Structured parts (tools, call arguments) are kept as JSON; images and other media are replaced by a
digest, and recognized by their shape, whatever they are called (`laar.protocol.urls`). An unknown
form is not an error: the prompt is then priced by its length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import xxhash

from laar.prefix.blocks import MAX_HASHED_BYTES
from laar.prefix.lengths import DIGEST, FILLER, MESSAGE
from laar.prefix.templates import TOOLS
from laar.protocol.urls import is_data, prose, unsigned, without_data
from laar.request import Api

MAX_SPANS = 20_000
"""Maximum number of texts in a prompt (10 ms of work). A long conversation has a thousand."""

MAX_NESTED = 4
"""Maximum nesting of content parts; the APIs use two levels."""

_EMBEDDING_CHARS = 8192 * 4 // 3
"""Base64 characters in a token's embedding: 4,096 16-bit numbers, as in an 8B model."""

_IMAGE_CHARS = 2400
"""Length in characters to which an image's digest is padded: about 600 tokens."""

_SYSTEM = ("system", "developer")

_THOUGHTS = "<think>\n%s\n</think>\n\n"  # most templates render reasoning similarly


class UnknownPromptError(Exception):
    """The prompt's form, or its number of parts, is not supported."""


@dataclass(slots=True)
class PromptSpans:
    """Collects the texts of a prompt, and the last one from the user.

    Raise `UnknownPromptError` if there are more than `MAX_SPANS`, or digests of `MAX_HASHED_BYTES`.
    """

    body: bytes
    texts: list[str] = field(default_factory=list)
    question: str = ""
    tokens: int = 0
    longest_share: float = 1.0
    prompts: int = 1
    media: int = 0

    def add(self, texts: list[str]) -> None:
        """Add texts unchanged."""
        self.texts += texts
        if len(self.texts) > MAX_SPANS:
            raise UnknownPromptError

    def message(self, role: object, content: object, thoughts: object = None) -> None:
        """Add a message: its role as a marker, its reasoning, then its texts."""
        texts = [content] if isinstance(content, str) else list(self._texts(content))
        if thoughts:
            texts.insert(0, _THOUGHTS % "".join(self._texts(thoughts)))
        self.texts += [f"{MESSAGE}{role if isinstance(role, str) else ''}\x1f", *texts]
        if len(self.texts) > MAX_SPANS:
            raise UnknownPromptError
        if role in ("user", None):
            while texts and texts[-1].startswith(DIGEST):
                texts.pop()
            self.question = texts[-1] if texts else self.question

    def embeddings(self, data: str) -> None:
        """Add embeddings as a digest, repeated up to the length of a text with as many tokens."""
        digest = f"{DIGEST}{xxhash.xxh3_128_hexdigest(data.encode('utf-8', 'replace'))}"
        times = 1 + 4 * getattr(data, "chars", len(data)) // _EMBEDDING_CHARS // len(digest)
        self.add([digest * times])

    def json(self, value: object) -> None:
        """Add structured content that engines render into the prompt, such as tool calls."""
        self.add([without_data(self._rendered(value), self._digest).decode()])

    def batch(self, entries: list[Any]) -> tuple[int, int]:
        """Add entries of which each is a prompt; return the bytes of the longest, and of all."""
        sizes = [0]
        if len(self.texts) + len(entries) > MAX_SPANS:
            raise UnknownPromptError
        for entry in entries:
            texts = list(self._texts([entry]))
            if isinstance(entry, str) and is_data(getattr(entry, "begin", entry)):
                texts = [self._digest(entry.encode(errors="replace"))]
            self.add(texts)
            sizes.append(sum(len(text.encode(errors="replace")) for text in texts))
        return max(sizes), sum(sizes)

    def tools(self, value: object) -> None:
        """Add the tool definitions."""
        self.add([TOOLS, self._rendered(value).decode()])

    def _texts(self, content: object, level: int = 0) -> Iterator[str]:
        """Yield the texts of a message's content; other parts are replaced by a digest."""
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            if len(content) > MAX_SPANS:
                raise UnknownPromptError
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
                    elif isinstance(thoughts := part.get("thinking"), str):
                        yield _THOUGHTS % thoughts
                    elif isinstance(part.get("input"), dict):  # a call of a tool
                        yield self._rendered([part.get("name"), part["input"]]).decode()
                    else:
                        before, rendered = self.media, self._rendered(_identity(part))
                        text = without_data(rendered, self._digest)
                        if prose(text):
                            yield text.decode()
                        else:  # a URL or an id
                            self.media = before
                            yield self._digest(rendered)

    def _digest(self, medium: bytes) -> str:
        """Return what stands for a medium."""
        self.media += 1
        if self.media * _IMAGE_CHARS > MAX_HASHED_BYTES:
            raise UnknownPromptError
        digest = f"{DIGEST}{xxhash.xxh3_128_hexdigest(medium)}"
        return digest.ljust(_IMAGE_CHARS, FILLER)

    def _rendered(self, value: object) -> bytes:
        try:
            return orjson.dumps(value)
        except orjson.JSONEncodeError:  # too deep, or lone surrogates
            try:
                return json.dumps(value, separators=(",", ":")).encode()
            except RecursionError:  # too deep: treat the prompt as unique
                return xxhash.xxh3_128_hexdigest(self.body).encode()


def _identity(part: dict[str, Any]) -> object:
    """Return what tells one image, or other medium, from others, and is the same in each turn."""
    if uuid := part.get("uuid"):  # engines then look at nothing else
        return uuid

    def kept(value: object) -> object:
        return unsigned(value) if isinstance(value, str) else value

    return {
        key: {name: kept(of[name]) for name in of} if isinstance(of, dict) else kept(of)
        for key, of in part.items()
        if key != "cache_control"  # an API marker that moves with every turn
    }


def _chat(document: dict[str, Any], spans: PromptSpans) -> None:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise UnknownPromptError
    if (system := document.get("system")) is not None:  # Anthropic's is outside the messages
        spans.message("system", _without_attribution(system))
    # Most templates render these after the system prompt (`laar.prefix.templates`).
    documents = document.get("documents")
    tools = document.get("tools")
    for message in messages:
        if not isinstance(message, dict):
            raise UnknownPromptError
        role = message.get("role")
        if documents and role not in _SYSTEM:
            spans.json(documents)
            documents = None
        if tools and role not in _SYSTEM:
            spans.tools(tools)
            tools = None
        content = message.get("content")
        if role == "user" and isinstance(content, list):
            kinds = [part.get("type") for part in content if isinstance(part, dict)]
            role = "tool" if kinds == ["tool_result"] * len(content) else role  # Anthropic's API
        spans.message(role, content, message.get("reasoning") or message.get("reasoning_content"))
        if calls := message.get("tool_calls"):
            spans.json(calls)
    if tools:
        spans.tools(tools)


_ATTRIBUTION = "x-anthropic-billing-header:"
"""Start of the line that coding agents prepend to the system prompt. It ends with a number that
changes with every request (``cch=``)."""


def _without_attribution(system: object) -> object:
    """Return the system prompt without the attribution line, which vLLM and llm-d also drop.

    Otherwise requests of a session would seem to share no prefix, although they do in the engine.
    """
    parts = [system] if isinstance(system, str) else system
    if not isinstance(parts, list):
        return system
    kept: list[object] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if not (isinstance(text, str) and text.startswith(_ATTRIBUTION)):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(rest)
    return kept


def _completions(document: dict[str, Any], spans: PromptSpans) -> None:
    given = document.get("prompt_embeds")
    for data in given if isinstance(given, list) else [given]:
        if isinstance(data, str):
            spans.embeddings(data)
    if "token_ids" in document and "prompt" not in document:
        _prompt(document, "token_ids", spans)
    elif document.get("prompt") or not spans.texts:
        _prompt(document, "prompt", spans)


def _prompt(document: dict[str, Any], key: str, spans: PromptSpans) -> None:
    prompt = document.get(key)
    if not isinstance(prompt, str | list) or not prompt:
        raise UnknownPromptError
    if isinstance(prompt, list) and not isinstance(prompt[0], str | dict):
        spans.json(prompt)  # token ids: their digits serve as a prefix, like text
        spans.texts[-1] = spans.texts[-1].removesuffix("]")  # a longer prompt continues here
        rows = prompt if isinstance(prompt[0], list) else [prompt]
        if all(
            isinstance(row, list) and all(isinstance(token, int) for token in row) for row in rows
        ):
            spans.tokens, spans.prompts = sum(map(len, rows)), len(rows)
            spans.longest_share = max(map(len, rows)) / max(spans.tokens, 1)
    else:
        texts = [prompt] if isinstance(prompt, str) else prompt
        longest, total = spans.batch(texts)
        spans.prompts = len(texts)
        spans.question = texts[-1] if isinstance(texts[-1], str) else ""
        spans.longest_share = longest / total if total else 1.0


def _responses(document: dict[str, Any], spans: PromptSpans) -> None:
    given = document.get("input")
    if not isinstance(given, str | list) or (isinstance(given, list) and len(given) > MAX_SPANS):
        raise UnknownPromptError
    if isinstance(instructions := document.get("instructions"), str):
        spans.message("system", instructions)
    if tools := document.get("tools"):
        spans.tools(tools)
    for item in given if isinstance(given, list) else [{"role": "user", "content": given}]:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "reasoning":
            spans.message("assistant", None, item.get("content"))
        elif isinstance(item, dict) and "content" in item:
            role = item.get("role") if kind in (None, "message") else kind
            spans.message(role, item["content"])
        elif isinstance(item, dict) and isinstance(output := item.get("output"), list | dict):
            spans.message(kind, output if isinstance(output, list) else [output])  # of a tool
        elif item:
            spans.json(item)


_PROMPTS = ("prompt", "text", "input_ids", "input", "inputs")


def _other(document: dict[str, Any], spans: PromptSpans) -> None:
    found = (key for key in _PROMPTS if isinstance(document.get(key), str | list))
    if isinstance(document.get("messages"), list):
        _chat(document, spans)
    elif key := next(found, ""):
        _prompt(document, key, spans)
    else:
        _pairs(document, spans)


def _pairs(document: dict[str, Any], spans: PromptSpans) -> None:
    """Read a query and what it is compared with: each entry of a list is a prompt with the rest."""
    longest = total = 0
    for name, value in document.items():
        if name != "model" and isinstance(value, str | dict | list):
            most, size = spans.batch(value if isinstance(value, list) else [value])
            longest, total = longest + most, total + size
    if not total:
        raise UnknownPromptError
    spans.longest_share = longest / total


READERS: dict[Api, Callable[[dict[str, Any], PromptSpans], None]] = {
    Api.CHAT: _chat,
    Api.MESSAGES: _chat,
    Api.COMPLETIONS: _completions,
    Api.EMBEDDINGS: _other,
    Api.RESPONSES: _responses,
    Api.OTHER: _other,
}
"""Readers of a document's texts by API; each may raise `UnknownPromptError`."""
