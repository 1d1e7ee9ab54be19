"""Read endpoints' answers, and build error answers.

A streamed answer consists of server-sent events, which may be split over any number of chunks. Its
usage is merged from all its events; later values win. Reading never changes a byte and never fails:
values that can't be read stay unknown.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from laar.errors import RequestError
from laar.health import GOOD, Kind, Reply
from laar.health.explained import Shown
from laar.protocol.jsonscan import own_models
from laar.protocol.sse import BOM, Lines, data_says
from laar.protocol.usefulness import Usefulness
from laar.request import TEXTS, Api

MAX_ANSWER_BYTES = 1 << 20
"""Maximum size of a JSON answer, or of a line of an event stream, that is buffered for reading."""
_MOST_INFLATED = 64
"""Bytes to which a compressed byte may grow on average, beyond the above; events grow 40-fold."""

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Error types of Anthropic's API, by status; some of its clients accept no other types."""

MAX_ERROR_BYTES = 4096
"""Maximum number of bytes of an error text that are examined to find out whose fault it is."""

_LONGEST_BEGINNING = 64
_ERROR_EVENT = re.compile(
    rb"^(?:event:[ ]?error[ ]*\r?$|data:[ ]?\{[ ]?\"error\"[ ]?:[ ]?[{\"]"
    rb"|data:[ ]?\{[ ]?\"(?:object|type)\"[ ]?:[ ]?\"error\")",
    re.MULTILINE,
)
_ERROR_DOCUMENT = re.compile(
    rb"\A\s*\{\s*\"(?:error\"\s*:\s*[{\"]|(?:object|type)\"\s*:\s*\"error\")"
)

_ENDS = {
    Api.MESSAGES: (b"message_stop",),
    Api.RESPONSES: (b"response.completed", b"response.incomplete", b"response.failed"),
}
_PROGRESS = re.compile(rb"^data:(?![ ]?\{[ ]?\"type\"[ ]?:[ ]?\"ping\")", re.MULTILINE)
"""Matches an event that is a sign of life; comments and pings only keep connections open."""
_LINE_ENDS = re.compile(rb"([\r\n])")
_FIELDS = b"deir:"
"""First letters of event-stream fields, and the colon of a comment."""
_REASON = re.compile(rb"\"finish_reason\"[ ]?:[ ]?\"([a-z_]{0,20})")
"""Matches what ends a stream without a final event, and how."""
_INDEX = re.compile(rb"\"index\"[ ]?:[ ]?([0-9]{1,4})")
_TAIL_BYTES = 1024
_BATCH_BYTES = 4096
"""Maximum bytes of events that are buffered and then searched together, in the time that a single
event would take. Ten thousand open answers hold at most 40 MB."""


def error_document(
    status: int, reason: str, message: str, request_id: str | None = None
) -> dict[str, Any]:
    """Return an error in OpenAI's and in Anthropic's format; `reason` is laar's code for it."""
    usual = "api_error" if status >= 500 else "invalid_request_error"
    kind = _ERROR_TYPES.get(status, usual)
    return {
        "type": "error",
        "error": {"message": message, "type": kind, "param": None, "code": reason},
        "request_id": request_id,
    }


def error_body(error: RequestError, request_id: str | None = None) -> bytes:
    """Return an error as a body."""
    return orjson.dumps(error_document(error.status, error.reason, str(error), request_id))


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts from the engine; None if not reported."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


NO_USAGE = Usage()

MAX_ID_CHARS = 256
"""Maximum length of a stored object's id; longer ids are ignored."""
_STORED_OBJECTS = ("response", "conversation")

_FIRST_ID = re.compile(rb'"id"[ ]?:[ ]?"([!#-\[\]-~]{1,%d})"' % MAX_ID_CHARS)
_ID_BYTES = 4096
"""Number of leading bytes searched for the id of an answer that is too long to buffer."""


class AnswerReader:
    """Reads usage, id and usefulness of an answer that arrives in chunks.

    An error may replace an answer, since engines send 200 before they fail. In a stream it is an
    event, at the beginning or later; otherwise it is the whole body. Quotes inside a string are
    escaped, so text from a model can't look like an error.

    Args:
        events: True for an event stream, False for one JSON document, None if unknown.
        stored: the engine stores what it answers, so read `stored_id` too.
        claims: the media type, if it is not that of the stream which the client asked for. Clients'
            libraries do not look at it, so only what arrives shows whether it is a stream.
        compressed: the body has a content encoding. Of those, gzip and zlib's are read.
        asked: the client may have asked for it, so an encoding that can't be read is no fault.
    """

    def __init__(
        self,
        *,
        events: bool | None,
        stored: bool = False,
        status: int = 200,
        api: Api = Api.OPAQUE,
        claims: str = "",
        compressed: bool = False,
        asked: bool = False,
    ) -> None:
        self._events = events
        self._claims = claims
        self._sse = Lines()
        self._wants_id = stored
        self._status = status
        self._api, self._use = api, Usefulness(api)
        self._bytes = self._events_seen = 0
        self._looked_at: list[int] = [0, 0]  # events examined, and their bytes
        self._is_judged = self._use.found is not None
        self._kept = bytearray()
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress if compressed else None
        self._room_bytes = MAX_ANSWER_BYTES
        self._undecoded: Kind | str = GOOD if asked else Kind.UNREADABLE
        self.rest = b"" if compressed else b"\n"
        """What to feed in order to read what was put by; empty if nothing ever is."""
        self._is_begun = self._too_long = False
        self._is_error = False
        self.has_ended = False  # whether a stream's last event was read; clients may then close
        self._ends = _ENDS.get(api, (b"[DONE]",))
        self._tail = b""
        self.progressed = False
        """Whether the last chunk held a sign of life, which comments and pings are not."""
        self.said = False
        """Whether anything was said: the first token has arrived."""
        self.finished = False
        """Whether every choice is complete, though the stream may still be open."""
        self._done: set[int] = set()
        self._last_choice = 0
        self.usage = NO_USAGE
        self.stored_id = ""
        """The id of the answer or conversation that the engine stores; empty until it is read."""

    def put_by(self, chunk: bytes) -> bool:
        """Keep a chunk for the next `feed` or `end` if it can wait; return whether it was kept.

        Once a stream has begun, only an error and the last events are urgent. Only whole lines are
        kept, so the word "error" is never split between two chunks.
        """
        kept, begun = self._kept, self.said and (self._is_judged or self._use.is_begun)
        split = self._sse.kept or self._sse.after_cr
        can_wait = self._events and begun and self.rest and not self._wants_id and not split
        whole = chunk[-1:] == b"\n" and (not kept or kept[-1:] == b"\n")
        fits = len(kept) + len(chunk) <= _BATCH_BYTES
        if not (can_wait and whole and fits) or b"error" in chunk or _REASON.search(chunk):
            return False
        kept += chunk
        return True

    def feed(self, chunk: bytes) -> Reply | None:
        """Read the next chunk of the body, in time linear in its length.

        Return what it shows about the endpoint: an error or a judgment of the answer, once each.
        """
        self._is_begun = self._is_begun or bool(chunk)
        if self._inflate is not None:
            chunk = self._inflated(chunk)
        if self._events is None:
            chunk = bytes(self._kept) + chunk
            self._kept.clear()
            if not (letter := chunk.removeprefix(BOM).lstrip()[:1]) or BOM.startswith(chunk):
                self._kept += chunk
                return None
            self._events = letter in _FIELDS
        error = None
        if self._events:
            lines = self._sse.feed(bytes(self._kept) + chunk, MAX_ANSWER_BYTES)
            self._kept.clear()
            self.progressed = _PROGRESS.search(lines) is not None
            error = self._lines(lines) if lines else None
        else:
            self.progressed = True
            self.said = self.said or bool(chunk.strip())
            begins_at = len(self._kept)
            if not self._too_long:
                self._kept += chunk
                if begins_at <= _LONGEST_BEGINNING:
                    error = self._error(_ERROR_DOCUMENT, bytes(self._kept[:MAX_ERROR_BYTES]))
        kept = self._sse.kept if self._events else self._kept
        if len(kept) > MAX_ANSWER_BYTES:
            first = None if self._too_long else _FIRST_ID.search(kept, 0, _ID_BYTES)
            if first and self._wants_id:
                self.stored_id, self._wants_id = first[1].decode(), False
            if self._use.found is None:  # a JSON answer this long has content
                is_json = self._events or kept.lstrip().startswith(b"{")
                self._use.found = GOOD if is_json else Kind.UNREADABLE
            self._too_long = self.said = True
            kept.clear()
        return error if self._is_judged else error or self._judged()

    def _inflated(self, chunk: bytes) -> bytes:
        """Return a decompressed chunk; read no more once that fails, or becomes too long."""
        if self._inflate is None or self._too_long:
            return b""
        found = self._undecoded
        with contextlib.suppress(zlib.error):
            self._room_bytes += _MOST_INFLATED * len(chunk)
            inflated = self._inflate(chunk, self._room_bytes + 1)
            self._room_bytes -= len(inflated)
            if self._room_bytes >= 0:
                return inflated
            found = GOOD
        self._too_long, self._use.found = True, self._use.found or found
        return b""

    def end(self) -> Reply | None:
        """Handle the end of the body; return what it shows about the endpoint, if that is new."""
        error = None
        if self._events:
            kept, self._kept = bytes(self._kept), bytearray()
            lines = self._sse.feed(kept, MAX_ANSWER_BYTES) + self._sse.end(MAX_ANSWER_BYTES)
            error = self._lines(lines)
        elif self._kept:
            self._document(self._kept)
            if self._claims and not self._is_judged:
                self._use.found = Kind.TYPE
        if error or self._is_error:
            return error
        unended = self._use.is_begun and not (self.has_ended or self._too_long)
        if self._events and unended and not _REASON.search(self._tail):
            return Reply(status=self._status, found=Kind.CUT)
        self._use.end(begun=self._is_begun)
        return self._judged()

    @property
    def shown(self) -> Shown | None:
        """What the whole answer shows, for comparison with siblings'; None unless it is a text."""
        use = self._use
        if self._api not in TEXTS or not isinstance(use.found, str):
            return None
        size = use.chars
        if self._events and use.found is GOOD:  # not every event is parsed
            count, looked = self._looked_at
            around = (looked - use.chars) / max(count, 1)
            size = max(size, round(self._bytes - self._events_seen * around))
        ends = _REASON.findall(self._tail if self._events else self._kept[-_TAIL_BYTES:])
        form = f"{use.form}{ends}" if use.found is GOOD else str(use.found)
        return Shown(f"{self._api} {bool(self._events)}", size, form, use.said)

    def _judged(self) -> Reply | None:
        """Return the finding the first time that there is one; None on every later call."""
        if self._is_judged or self._use.found is None or self._is_error:
            return None
        self._is_judged = True
        use = self._use
        return Reply(
            status=self._status,
            found=use.found,
            model=use.model,
            said=use.said,
            seems=use.seems,
            detail=self._claims if use.found is Kind.TYPE else "",
        )

    def _error(self, pattern: re.Pattern[bytes], text: bytes) -> Reply | None:
        found = None if self._is_error or b"error" not in text else pattern.search(text)
        if found is None:
            return None
        self._is_error = True
        text = text[found.start() : found.start() + MAX_ERROR_BYTES]
        return Reply(status=self._status, text=text, event=True)

    def _lines(self, lines: bytes) -> Reply | None:
        error = self._error(_ERROR_EVENT, lines) if b"error" in lines else None
        # Most chunks are deltas without usage; searching for the word is cheaper than parsing.
        if self._use.found is None or self._wants_id or b'"usage"' in lines:
            for line in lines.split(b"\n"):
                is_read = self._use.found is None or b'"usage"' in line or self._wants_id
                if is_read and line.startswith(b"data:") and b"{" in line:  # not [DONE]
                    self._document(line[5:])
        if not self.said:
            data = (line[5:] for line in lines.split(b"\n") if line.startswith(b"data:"))
            self.said = any(map(data_says, data))
        self._bytes += len(lines)
        self._events_seen += lines.count(b"data:")
        if not self.has_ended:
            self._finish(lines)
            self.has_ended = any(end in lines for end in self._ends)
            self._tail = (self._tail + lines)[-_TAIL_BYTES:]
        return error

    def _finish(self, lines: bytes) -> None:
        """Note which choices have their finish reasons."""
        self._last_choice = max(self._last_choice, *map(int, _INDEX.findall(lines)), 0)
        for found in _REASON.finditer(lines):
            # An event names its choice before the reason; one that does not is the only one.
            begin = lines.rfind(b"\n", 0, found.start()) + 1
            end = lines.find(b"\n", found.end())
            index = _INDEX.search(lines, begin, len(lines) if end < 0 else end)
            self._done.add(int(index[1]) if index else 0)
        self.finished = len(self._done) > self._last_choice

    def _document(self, text: bytes | bytearray) -> None:
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError:
            try:  # reads NaN, Infinity and lone surrogates too; the last can't be written as JSON
                text = json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace")
                document = json.loads(text)
            except (ValueError, RecursionError):
                return
        if not isinstance(document, dict):
            return
        if self._wants_id:
            self._read_id(document)
        if self._use.found is None:
            before = self._use.chars
            self._use.look(document)
            if self._use.chars > before:
                self._looked_at[0] += 1
                self._looked_at[1] += len(text) + len("data:")
        found = document.get("usage")
        for nest in ("response", "message"):  # the Responses API's and Anthropic's events
            nested = document.get(nest)
            if found is None and isinstance(nested, dict):
                found = nested.get("usage")
        if isinstance(found, dict):
            self.usage = _merged(self.usage, found)

    def _read_id(self, document: dict[str, Any]) -> None:
        """Read the id from a whole answer, or from a stream's first event, which wraps it."""
        answer = document.get("response", document)
        if isinstance(answer, dict) and answer.get("object") in _STORED_OBJECTS:
            name = answer.get("id")
            if isinstance(name, str) and len(name) <= MAX_ID_CHARS:
                self.stored_id = name
            self._wants_id = not self.stored_id


def _merged(old: Usage, found: dict[str, Any]) -> Usage:
    """Merge a later event's usage into the usage so far, field by field."""

    def first(*names: str) -> int | None:
        return next((n for n in map(found.get, names) if _is_count(n)), None)

    prompt, uncached = first("prompt_tokens"), first("input_tokens")
    completion = first("completion_tokens", "output_tokens")
    cached = first("cache_read_input_tokens")
    if prompt is None and uncached is not None:
        # Anthropic's count excludes the tokens read from a cache and those written to it.
        prompt = uncached + (cached or 0) + (first("cache_creation_input_tokens") or 0)
    for name in ("prompt_tokens_details", "prompt_token_details", "input_tokens_details"):
        details = found.get(name)
        if isinstance(details, dict) and _is_count(details.get("cached_tokens")):
            cached = details["cached_tokens"]
    return Usage(
        old.prompt_tokens if prompt is None else prompt,
        old.completion_tokens if completion is None else completion,
        # SGLang added up all choices' (https://github.com/sgl-project/sglang/pull/12814).
        old.cached_tokens if cached is None or cached > (prompt or cached) else cached,
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40


def name_restorer(*, served: str, asked: str, whole: bool = False) -> Callable[[bytes], bytes]:
    """Return a function that restores the client's model name in a part of an answer.

    Only an object's own `model` is changed, and that of the answer in an event: other objects in it
    may come from the model or the client, such as metadata and the arguments of tools.

    Args:
        served: name that the endpoint writes.
        asked: name that replaces it.
        whole: the answer is one object; otherwise each line is.
    """
    name, new = orjson.dumps(served), orjson.dumps(asked)
    pattern = re.compile(b'("model": ?)' + re.escape(name))

    def in_object(text: bytes) -> bytes:
        found = pattern.search(text)
        if found is None:
            return text
        alone = not whole and pattern.search(text, found.end()) is None
        if alone and text.count(b"{", 0, found.start()) == 1:  # most events begin with it
            return b"%b%b%b%b" % (text[: found.start()], found[1], new, text[found.end() :])
        start = max(text.find(b"{"), 0)
        spans = own_models(text[start:])
        if spans is None:  # a part of an object that is too long to be held back
            return pattern.sub(lambda found: found[1] + new, text)
        for begin, end in sorted(spans, reverse=True):
            if text[start + begin : start + end] == name:
                text = text[: start + begin] + new + text[start + end :]
        return text

    def in_lines(data: bytes) -> bytes:
        found = pattern.search(data)
        return data if found is None else b"".join(map(in_object, _LINE_ENDS.split(data)))

    return in_object if whole else in_lines
