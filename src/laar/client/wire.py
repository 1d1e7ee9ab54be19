"""Parse chat completions, JSON bodies and server-sent events, without I/O.

Only the fields that the retry loop and measurements need are kept: text, model and usage. Endpoints
are not trusted: anything unexpected raises `NotACompletion`, never KeyError.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

MAX_ANSWER_BYTES = 16 * 2**20
"""Maximum length of an answer: over ten times the longest output of today's models. In a stream the
limit applies to the text and to each event, since events add about 250 bytes per token."""

_OF_TOKENS = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")
"""Fields of a delta that hold model output."""


class NotACompletion(Exception):  # noqa: N818  # named for the fault; never leaves the package
    """The endpoint returned 200 but did not send a completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion:
    """An answer's text and usage; counts that the answer does not contain are None."""

    text: str
    model: str | None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class Deltas:
    """Collects a streamed answer from the bytes of its events, in any chunks."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._model: str | None = None
        self._usage: object = None
        self._held = bytearray()  # the incomplete line
        self._text_bytes = 0
        self._answers = self._begun = self._ended = self._failed = False

    def feed(self, data: bytes) -> bool:
        """Read the next bytes of the stream; return whether the first token has arrived."""
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            self._read(bytes(self._held) + head)
            self._held.clear()
        self._held += tail
        _bounded(len(self._held))
        return self._begun

    def completion(self) -> ChatCompletion:
        """Return the answer; raise `NotACompletion` if the stream ended early."""
        self._read(bytes(self._held))
        if not (self._answers and self._ended):
            raise NotACompletion("the stream ended before the answer did")
        return _completion("".join(self._parts), self._model, self._usage)

    def _read(self, lines: bytes) -> None:
        for line in lines.splitlines():  # bytes.splitlines splits only at the line ends of events
            if line.startswith(b"data:"):
                self._event(line[5:].strip())
            elif line.startswith(b"event:") and line[6:].strip() == b"error":
                self._failed = True

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._ended = True
            return
        chunk = _object(data)
        if chunk.get("error") or chunk.get("object") == "error" or self._failed:
            raise NotACompletion(f"the stream broke off with {chunk.get('error') or chunk!r:.300}")
        self._model = _text(chunk.get("model")) or self._model
        self._usage = chunk.get("usage") or self._usage
        choice = _first(chunk.get("choices"))
        self._answers = self._answers or bool(choice)
        self._ended = self._ended or choice.get("finish_reason") is not None
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return
        self._begun = self._begun or any(map(delta.get, _OF_TOKENS))
        if part := _text(delta.get("content")):
            self._parts.append(part)
            self._text_bytes = _bounded(self._text_bytes + len(part))


def _bounded(size: int) -> int:
    if size > MAX_ANSWER_BYTES:
        raise NotACompletion(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return size


def read_completion(body: bytes) -> ChatCompletion:
    """Read an answer's JSON body; raise `NotACompletion` if it is something else."""
    _bounded(len(body))
    answer = _object(body)
    message = _first(answer.get("choices")).get("message")
    if not isinstance(message, dict):
        raise NotACompletion("the answer has no choices[0].message")
    text = _text(message.get("content")) or ""
    return _completion(text, _text(answer.get("model")), answer.get("usage"))


def _completion(text: str, model: str | None, usage: object) -> ChatCompletion:
    counts = usage if isinstance(usage, dict) else {}
    details = counts.get("prompt_tokens_details")
    return ChatCompletion(
        text=text,
        model=model,
        prompt_tokens=_count(counts.get("prompt_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        completion_tokens=_count(counts.get("completion_tokens")),
    )


def _object(data: bytes) -> dict[str, object]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as fault:
        raise NotACompletion(f"the answer is not JSON: {fault}") from fault
    if not isinstance(value, dict):
        raise NotACompletion("the answer is not a JSON object")
    return value


def _first(choices: object) -> dict[str, object]:
    """Return the choice with index 0; a chunk of a stream may hold another."""
    items = choices if isinstance(choices, list) else ()
    return next((item for item in items if isinstance(item, dict) and not item.get("index")), {})


def _text(value: object) -> str | None:
    if isinstance(value, list):  # some vendors send reasoning and text as parts
        value = "".join(_text(part.get("text")) or "" for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**31 else None
