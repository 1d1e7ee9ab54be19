"""Write answers and streams in the formats of the APIs that vLLM serves.

A reply turns text into bytes, and knows nothing about engines or sockets. `opening` is sent
together with the first text, never before it, so the first chunk of a body always contains the
first token, even in chats.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import orjson

from laar_lab.sim.endpoint.errors import DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a request; `cached_tokens` are the prompt tokens from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def openai(self) -> dict[str, object]:
        """Return the usage object of chats and completions."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def responses(self) -> dict[str, object]:
        """Return the usage object of the Responses API."""
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def anthropic(self) -> dict[str, object]:
        """Return the usage object of the Messages API."""
        return {
            "input_tokens": self.prompt_tokens - self.cached_tokens,
            "cache_read_input_tokens": self.cached_tokens,
            "output_tokens": self.completion_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """The parts of a request that its answer depends on.

    `include_usage` requests a usage chunk at a stream's end, `continuous_usage` usage in every
    chunk.
    """

    request_id: str
    model: str
    include_usage: bool = False
    continuous_usage: bool = False


class Reply(Protocol):
    """An answer in the format of one API."""

    def opening(self, usage: Usage) -> bytes:
        """Return the bytes of a stream before its first text."""
        ...

    def piece(self, text: str, finish: str | None, usage: Usage) -> bytes:
        """Return the bytes for more text; `finish` is "stop" or "length" on the last piece."""
        ...

    def closing(self, text: str, finish: str, usage: Usage) -> bytes:
        """Return the bytes of a stream after its last text; `text` is the complete text."""
        ...

    def whole(self, text: str, finish: str, usage: Usage) -> bytes:
        """Return the answer as one body."""
        ...


class _OpenAiReply:
    """Common part of chats and completions: the envelope, chunks and the final usage."""

    prefix: str
    chunk_object: str
    whole_object: str

    def __init__(self, head: ReplyHead) -> None:
        self._head = head
        self._created = int(time.time())

    def closing(self, text: str, finish: str, usage: Usage) -> bytes:
        if not self._head.include_usage:
            return DONE
        return _data(self._envelope(self.chunk_object, [], usage.openai())) + DONE

    def _envelope(
        self, kind: str, choices: list[dict[str, object]], usage: Mapping[str, object] | None
    ) -> dict[str, object]:
        envelope: dict[str, object] = {
            "id": f"{self.prefix}-{self._head.request_id}",
            "object": kind,
            "created": self._created,
            "model": self._head.model,
            "choices": choices,
        }
        if usage is not None:
            envelope["usage"] = usage
        return envelope

    def _chunk(self, choice: dict[str, object], finish: str | None, usage: Usage) -> bytes:
        choice = {"index": 0, **choice, "logprobs": None, "finish_reason": finish}
        running = usage.openai() if self._head.continuous_usage else None
        if running is not None:
            del running["prompt_tokens_details"]
        return _data(self._envelope(self.chunk_object, [choice], running))

    def _whole(self, choice: dict[str, object], finish: str, usage: Usage) -> bytes:
        choice = {"index": 0, **choice, "logprobs": None, "finish_reason": finish}
        return orjson.dumps(self._envelope(self.whole_object, [choice], usage.openai()))


class ChatReply(_OpenAiReply):
    """Format of ``/v1/chat/completions``."""

    prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def opening(self, usage: Usage) -> bytes:
        """Return a chunk with the role."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None, usage)

    def piece(self, text: str, finish: str | None, usage: Usage) -> bytes:
        """Return a delta."""
        return self._chunk({"delta": {"content": text}}, finish, usage)

    def whole(self, text: str, finish: str, usage: Usage) -> bytes:
        """Return a message."""
        return self._whole({"message": {"role": "assistant", "content": text}}, finish, usage)


class CompletionReply(_OpenAiReply):
    """Format of ``/v1/completions``."""

    prefix = "cmpl"
    chunk_object = "text_completion"
    whole_object = "text_completion"

    def opening(self, usage: Usage) -> bytes:
        """Return nothing, as these streams have no opening."""
        return b""

    def piece(self, text: str, finish: str | None, usage: Usage) -> bytes:
        """Return a chunk of text."""
        return self._chunk({"text": text}, finish, usage)

    def whole(self, text: str, finish: str, usage: Usage) -> bytes:
        """Return the text."""
        return self._whole({"text": text}, finish, usage)


class ResponsesReply:
    """Format of ``/v1/responses``: typed, numbered events; the last repeats the whole answer."""

    def __init__(self, head: ReplyHead) -> None:
        self._head = head
        self._created = int(time.time())
        self._number = 0

    def opening(self, usage: Usage) -> bytes:
        """Announce the response, its message and the message's part."""
        empty = self._response("in_progress", [], None)
        return (
            self._event("response.created", response=empty)
            + self._event("response.in_progress", response=empty)
            + self._event(
                "response.output_item.added", output_index=0, item=self._message("in_progress", [])
            )
            + self._of_part("response.content_part.added", part=_output_text(""))
        )

    def piece(self, text: str, finish: str | None, usage: Usage) -> bytes:
        """Return a delta."""
        return self._of_part("response.output_text.delta", delta=text, logprobs=[])

    def closing(self, text: str, finish: str, usage: Usage) -> bytes:
        """Close part, message and response, in this order."""
        part = _output_text(text)
        response = self._final(text, finish, usage)
        last = f"response.{response['status']}"
        return (
            self._of_part("response.output_text.done", text=text, logprobs=[])
            + self._of_part("response.content_part.done", part=part)
            + self._event(
                "response.output_item.done",
                output_index=0,
                item=self._message("completed", [part]),
            )
            + self._event(last, response=response)
        )

    def whole(self, text: str, finish: str, usage: Usage) -> bytes:
        """Return the response."""
        return orjson.dumps(self._final(text, finish, usage))

    def _final(self, text: str, finish: str, usage: Usage) -> dict[str, object]:
        message = self._message("completed", [_output_text(text)])
        if finish == "stop":
            return self._response("completed", [message], usage.responses())
        response = self._response("incomplete", [message], usage.responses())
        return {**response, "incomplete_details": {"reason": "max_output_tokens"}}

    def _response(
        self, status: str, output: list[object], usage: Mapping[str, object] | None
    ) -> dict[str, object]:
        return {
            "id": f"resp_{self._head.request_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._head.model,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 0.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": usage,
        }

    def _message(self, status: str, parts: list[object]) -> dict[str, object]:
        return {
            "id": f"msg_{self._head.request_id}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": parts,
        }

    def _of_part(self, kind: str, **fields: object) -> bytes:
        item_id = f"msg_{self._head.request_id}"
        return self._event(kind, item_id=item_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return _event(kind, event)


class MessagesReply:
    """Format of Anthropic's ``/v1/messages``, with one text block."""

    def __init__(self, head: ReplyHead) -> None:
        self._head = head

    def opening(self, usage: Usage) -> bytes:
        """Announce the message and its block, with the prompt's usage."""
        return _event(
            "message_start", {"type": "message_start", "message": self._message([], None, usage)}
        ) + _event(
            "content_block_start",
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "text", "text": ""},
            },
        )

    def piece(self, text: str, finish: str | None, usage: Usage) -> bytes:
        """Return a delta."""
        delta = {"type": "text_delta", "text": text}
        return _event(
            "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
        )

    def closing(self, text: str, finish: str, usage: Usage) -> bytes:
        """Close block and message."""
        delta = {"stop_reason": _stop_reason(finish), "stop_sequence": None}
        return (
            _event("content_block_stop", {"type": "content_block_stop", "index": 0})
            + _event(
                "message_delta",
                {"type": "message_delta", "delta": delta, "usage": usage.anthropic()},
            )
            + _event("message_stop", {"type": "message_stop"})
        )

    def whole(self, text: str, finish: str, usage: Usage) -> bytes:
        """Return the message."""
        block = {"type": "text", "text": text}
        return orjson.dumps(self._message([block], _stop_reason(finish), usage))

    def _message(
        self, content: list[object], stop_reason: str | None, usage: Usage
    ) -> dict[str, object]:
        return {
            "id": f"msg_{self._head.request_id}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._head.model,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": usage.anthropic(),
        }


def _stop_reason(finish: str) -> str:
    return "max_tokens" if finish == "length" else "end_turn"


def _output_text(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _data(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _event(kind: str, value: object) -> bytes:
    return b"event: " + kind.encode() + b"\n" + _data(value)
