"""Read event streams by their standard, and tell whether an event says anything.

By https://html.spec.whatwg.org/multipage/server-sent-events.html lines end with CR, LF or both, an
event's data may have several lines, and a byte order mark may come first. `Lines` brings them all
into one form, so whatever reads answers has to know only that form.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

BOM = b"\xef\xbb\xbf"
_USUAL = re.compile(rb"(?:(?:(?!data)[^\n]+\n)*+(?:data[^\n]*\n)?+(?:(?!data)[^\n]+\n)*+\n)*+")
"""Matches whole events with at most one line of data each."""
_OPENS = (b"{", b"[")

_ROOTS = ("choices", "output", "outputs", "candidates", "content")
"""Lists that hold what an answer says; what stands beside one is about the answer."""
_CONTENT = re.compile(
    r"(?i)text|content|delta|audio|arguments|reasoning|thinking|tokens?$|_ids$|json"
)
"""Matches the names of members that hold content."""
_ABOUT = re.compile(
    r"""(?x) (?: ^|_|(?<=[a-z])(?=[A-Z]) ) (?i: id|uuid|index|object|type|kind|event|model|role
    |status|state|stage|phase|step|created|at|time|timestamp|date|version|fingerprint|tier|provider
    |reason|usage|meta|metadata|info|stats|timings|progress|queue|position|prompt|signature )
    (?: $|_|[A-Z] )"""
)
"""Matches the names of members that say which event it is, how far the work is, what was asked."""
_SIGNS = re.compile(rb"(?i)\s*(?:\[DONE\]|ping|keep.?alive|heart.?beat)?\s*")


class Lines:
    """Turns the chunks of a stream into lines that end with LF, with one line of data per event.

    Data that is not JSON is left on as many lines as it came.
    """

    def __init__(self) -> None:
        self.kept = bytearray()
        """The beginning of a line whose end has not arrived."""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self.after_cr = False
        """Whether the latest line ended with CR, so that a LF next belongs to its end."""
        self._begun = False

    def feed(self, chunk: bytes, most_bytes: int) -> bytes:
        """Return the lines that the next chunk completes; keep an event's data to `most_bytes`."""
        if not self._begun:
            chunk = bytes(self.kept) + chunk
            self.kept.clear()
            if len(chunk) < len(BOM) and BOM.startswith(chunk):
                self.kept += chunk
                return b""
            chunk, self._begun = chunk.removeprefix(BOM), True
        if self.after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self.after_cr = False
        cut = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        if cut < 0:
            self.kept += chunk
            return b""
        lines = bytes(self.kept) + chunk[: cut + 1]
        self.kept = bytearray(chunk[cut + 1 :])
        self.after_cr = chunk.endswith(b"\r")
        if b"\r" in lines:
            lines = lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._data and _USUAL.fullmatch(lines):
            return lines
        return self._joined(lines, most_bytes)

    def end(self, most_bytes: int) -> bytes:
        """Return what is left when the stream ends, as if it had ended the event."""
        kept, self.kept = bytes(self.kept), bytearray()
        return self._joined(kept + b"\n\n", most_bytes)

    def _joined(self, lines: bytes, most_bytes: int) -> bytes:
        made: list[bytes] = []
        for line in lines[:-1].split(b"\n"):
            value = line[5:] if line.startswith(b"data:") else None
            if value is None:
                if not line:
                    self._flush(made)
                made.append(line)
            elif self._data or (value.lstrip().startswith(_OPENS) and not _is_json(value)):
                self._data.append(value)
                self._data_bytes += len(value)
                if self._data_bytes > most_bytes:
                    self._flush(made)
            else:
                made.append(line)
        return b"\n".join((*made, b"")) if made else b""

    def _flush(self, made: list[bytes]) -> None:
        if not self._data:
            return
        whole = b"".join(self._data)  # JSON is split between its tokens: a text holds no line end
        if len(self._data) > 1 and _is_json(whole):
            whole = b" " + orjson.dumps(orjson.loads(whole))
        made.append(b"data:" + whole)
        self._data, self._data_bytes = [], 0


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def data_says(data: bytes) -> bool:
    """Return whether an event's data says something, and is not just a sign of life.

    Content is text, reasoning, a tool's call, sound, tokens. Which event it is, its role, its
    status and what the client asked are none, so no API has to be known: only the most specific
    members of an object count. These are the list of an answer's parts, then members named after
    content, then all whose names are not those of identification.
    """
    try:
        return _says(orjson.loads(data), inside=False)
    except orjson.JSONDecodeError:
        return not _SIGNS.fullmatch(data)
    except RecursionError:  # no sign of life is this deep
        return True


def _says(value: Any, *, inside: bool) -> bool:
    """Return whether a part of an event says something; `inside` if it is within content."""
    if isinstance(value, str):
        return bool(value)
    if isinstance(value, list):
        numbers = inside and bool(value) and type(value[0]) in (int, float)
        return numbers or any(_says(item, inside=inside) for item in value)
    if not isinstance(value, dict):
        return False
    for root in _ROOTS:
        if isinstance(value.get(root), list):
            return _says(value[root], inside=True)
    parts = [(name, part) for name, part in value.items() if not _ABOUT.search(name)]
    if not inside:
        named = [(name, part) for name, part in parts if _CONTENT.search(name)]
        inside = bool(named)
        parts = named or [(n, p) for n, p in parts if n != "message" or not isinstance(p, str)]
    return any(_says(part, inside=inside) for _, part in parts)
