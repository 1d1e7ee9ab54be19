"""Answers: the parts of endpoints' answers that laar reads, and laar's own answers.

A streamed answer is server-sent events; an event may be split over any number of pieces, and usage
may come in several events, of which the last counts. Reading never changes a byte and never fails:
values that cannot be read stay unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from laar.errors import RequestError
from laar.protocol.jsonscan import member_spans

__all__ = ["NO_USAGE", "ErrorSpotter", "NameRestorer", "Usage", "UsageReader", "error_body"]

MAX_ANSWER_BYTES = 1 << 20
"""Longest JSON answer, and longest line of an event stream, that is kept to read its usage."""

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


MAX_ERROR_BYTES = 4096
"""Bytes of an error's text that are examined for whose fault it is."""

_LONGEST_BEGINNING = 64
_ERROR_EVENT = re.compile(
    rb"^(?:event:[ ]?error[ ]*\r?$|data:[ ]?\{[ ]?\"error\"[ ]?:[ ]?[{\"]"
    rb"|data:[ ]?\{[ ]?\"(?:object|type)\"[ ]?:[ ]?\"error\")",
    re.MULTILINE,
)
_ERROR_DOCUMENT = re.compile(
    rb"\A\s*\{\s*\"(?:error\"\s*:\s*[{\"]|(?:object|type)\"\s*:\s*\"error\")"
)


def error_body(error: RequestError) -> bytes:
    """A refusal in the shape of OpenAI's errors, with laar's reason code beside it."""
    return orjson.dumps(
        {
            "error": {
                "message": str(error),
                "type": _ERROR_TYPES.get(error.status, "api_error"),
                "param": None,
                "code": error.status,
                "reason": error.reason,
            }
        }
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them; None for counts that it did not report."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


NO_USAGE = Usage()

MAX_ID_CHARS = 256
"""Longest id of a stored answer that is remembered."""

_FIRST_ID = re.compile(rb'"id"[ ]?:[ ]?"([!#-\[\]-~]{1,%d})"' % MAX_ID_CHARS)
_ID_BYTES = 4096
"""Bytes at the beginning of an answer too long to be kept, among which its id is looked for."""


class UsageReader:
    """Reads usage out of an answer that passes in pieces.

    Args:
        events: the answer is an event stream; otherwise one JSON document.
        stored: the API keeps answers (Responses): `response_id` is read too.
    """

    def __init__(self, *, events: bool, stored: bool = False) -> None:
        self._events = events
        self._stored = stored
        self._kept = bytearray()
        self._too_long = False
        self.usage = NO_USAGE
        self.response_id = ""
        """The id under which the engine stores this answer; empty until it is read."""

    def feed(self, piece: bytes) -> None:
        """Takes the next piece of the body; in time that goes with the piece alone."""
        cut = piece.rfind(b"\n") if self._events else -1
        if cut >= 0:
            lines = bytes(self._kept) + piece[:cut]
            self._kept = bytearray(piece[cut + 1 :])
            # Most pieces are deltas without usage; looking for the word is cheaper than parsing.
            if b'"usage"' in lines or self._wants_id:
                for line in lines.split(b"\n"):
                    self._line(line)
        elif self._events or not self._too_long:
            self._kept += piece
        if len(self._kept) > MAX_ANSWER_BYTES:
            first = None if self._too_long else _FIRST_ID.search(self._kept, 0, _ID_BYTES)
            if first and self._wants_id:
                self.response_id = first[1].decode()
            self._too_long = True
            self._kept.clear()

    def end(self) -> Usage:
        """The usage, once the body is complete."""
        if self._events:
            self._line(self._kept)
        elif self._kept:
            self._document(self._kept)
        self._kept.clear()
        return self.usage

    @property
    def _wants_id(self) -> bool:
        return self._stored and not self.response_id

    def _line(self, line: bytes | bytearray) -> None:
        if line.startswith(b"data:") and (b'"usage"' in line or self._wants_id):
            self._document(line[5:])

    def _document(self, text: bytes | bytearray) -> None:
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError:
            return
        if not isinstance(document, dict):
            return
        if self._wants_id:
            self._read_id(document)
        found = document.get("usage")
        for nest in ("response", "message"):  # the Responses API's and Anthropic's events
            nested = document.get(nest)
            if found is None and isinstance(nested, dict):
                found = nested.get("usage")
        if isinstance(found, dict):
            self.usage = _merged(self.usage, found)

    def _read_id(self, document: dict[str, Any]) -> None:
        """The first event of a stream holds the answer that is begun; a whole one is the answer."""
        answer = document.get("response", document)
        if isinstance(answer, dict) and answer.get("object") == "response":
            name = answer.get("id")
            if isinstance(name, str) and len(name) <= MAX_ID_CHARS:
                self.response_id = name


def _merged(old: Usage, found: dict[str, Any]) -> Usage:
    """Merges later events into earlier ones, field by field."""

    def first(*names: str) -> int | None:
        return next((n for n in map(found.get, names) if _is_count(n)), None)

    prompt, uncached = first("prompt_tokens"), first("input_tokens")
    completion = first("completion_tokens", "output_tokens")
    cached = first("cache_read_input_tokens")
    if prompt is None and uncached is not None:
        # Anthropic's has neither the tokens that a cache was read for nor those that fill it.
        prompt = uncached + (cached or 0) + (first("cache_creation_input_tokens") or 0)
    for name in ("prompt_tokens_details", "prompt_token_details", "input_tokens_details"):
        details = found.get(name)
        if isinstance(details, dict) and _is_count(details.get("cached_tokens")):
            cached = details["cached_tokens"]
    return Usage(
        old.prompt_tokens if prompt is None else prompt,
        old.completion_tokens if completion is None else completion,
        old.cached_tokens if cached is None else cached,
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40


class ErrorSpotter:
    """Finds an error where an answer should be: 200 was sent before the engine knew better.

    A stream has it in an event, at its beginning or later; a whole answer is nothing else. Inside
    a string every quote has a backslash before it, so that no text of a model looks like one.

    Args:
        events: the answer is an event stream; otherwise one JSON document.
    """

    def __init__(self, *, events: bool) -> None:
        self._pattern = _ERROR_EVENT if events else _ERROR_DOCUMENT
        self._events = events
        self._kept = b""
        self._over = False

    def feed(self, piece: bytes) -> bytes:
        """Takes the next piece; the beginning of the error, or nothing. Found once."""
        if self._over:
            return b""
        kept = self._kept + piece
        found = self._pattern.search(kept) if b"error" in kept else None
        if found:
            self._over = True
            return kept[found.start() : found.start() + MAX_ERROR_BYTES]
        self._kept = kept[-_LONGEST_BEGINNING:]
        self._over = not self._events and len(kept) > _LONGEST_BEGINNING
        return b""


class NameRestorer:
    """Puts the name the client used back where the endpoint wrote its own.

    Only the member ``"model": "<name>"`` is changed, however the answer is cut into pieces: the end
    of a piece that may be the beginning of one is held back for the next.

    Args:
        served: name that the endpoint writes.
        asked: name that takes its place.
        whole: the answer is one object, in which others may have such a member. It is held back to
            its end, up to `MAX_ANSWER_BYTES`, and only its own member is changed.
    """

    def __init__(self, *, served: str, asked: str, whole: bool = False) -> None:
        self._name = name = orjson.dumps(served)
        self._is_whole = whole
        self._whole = [b'"model":%s%s' % (gap, name) for gap in (b"", b" ")]
        self._pattern = re.compile(b'("model": ?)' + re.escape(name))
        self._asked = orjson.dumps(asked)
        self._held = b""

    @property
    def holds_back(self) -> bool:
        """Whether a part of the pieces so far waits for the next one."""
        return bool(self._held)

    def feed(self, piece: bytes, *, end: bool) -> bytes:
        """The piece with names restored, without the bytes held back."""
        data = self._held + piece
        if self._is_whole and len(data) <= MAX_ANSWER_BYTES:
            self._held = b"" if end else data
            return self._of_object(data) if end else b""
        self._is_whole = False
        parts: list[bytes] = []
        done = 0
        for found in self._pattern.finditer(data):
            parts += data[done : found.start()], found[1], self._asked
            done = found.end()
        # A replaced part is complete: its last quote begins no other name.
        keep = 0 if end else max(self._partial(data, whole, done) for whole in self._whole)
        self._held = data[len(data) - keep :]
        parts.append(data[done : len(data) - keep])
        return b"".join(parts)

    def _of_object(self, data: bytes) -> bytes:
        start, end = (member_spans(data) or {}).get("model", (0, 0))
        return data[:start] + self._asked + data[end:] if data[start:end] == self._name else data

    @staticmethod
    def _partial(data: bytes, pattern: bytes, start: int) -> int:
        """Length of the longest end of `data`, behind `start`, that begins `pattern`."""
        start = max(start, len(data) - len(pattern) + 1)
        while (start := data.find(pattern[:1], start)) >= 0:
            if pattern.startswith(data[start:]):
                return len(data) - start
            start += 1
        return 0
