"""Read from an answer what shows whether it is of any use to the client.

These are facts: whether it can be read, whether it says anything (text, reasoning, a tool call, a
refusal, a vector), how it begins, how long it is. None is a fault by itself, as clients may ask for
empty, short or equal answers: `laar.health` compares them with other endpoints' answers.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from itertools import islice
from typing import Any

from laar.health import GOOD, Kind
from laar.request import Api

Finding = Kind | str | None
"""A kind of failure, `GOOD`, or None while undecided."""

_ROOTS: Mapping[Api, KeysView[str]] = {
    api: dict.fromkeys(roots.split()).keys()
    for api, roots in {
        Api.CHAT: "choices",
        Api.COMPLETIONS: "choices",
        Api.MESSAGES: "content content_block delta",
        Api.RESPONSES: "output delta item",
        Api.EMBEDDINGS: "data embeddings",
    }.items()
}
"""Members that hold the content of an answer or of one event."""
_SAYS = frozenset(
    """
    arguments audio content data delta embedding encrypted_content function function_call image_url
    images input logprobs message name output partial_json reasoning reasoning_content refusal
    summary text thinking token token_ids tokens tool_calls
    """.split()  # noqa: SIM905 - one per line would fill a page
)
"""Nested members that may hold content."""
_BEGINNING_CHARS = 64
"""Length of the beginning by which answers are compared: about 16 tokens. Reading more of a stream
would cost a parsed event for each token."""
_MOST_PARTS = 64
_READ_CHARS = 4096  # of one text; it is blank if these are
_SHORT_CHARS = 16
_LONGEST_TOKEN = 16  # in characters
_NAME_CHARS = 256
REDIRECTS = range(300, 400)
"""Statuses that no engine sends, but a login page in front may; treated as `Kind.TYPE`."""


def flaw_of_type(media_type: str, api: Api, *, stream: bool) -> bool:
    """Return whether this media type is wrong for an answer, streamed or not."""
    if not media_type or api is Api.OTHER:
        return False
    if api is Api.EMBEDDINGS:  # embeddings may be bytes
        return media_type.startswith("text/")
    if media_type == "text/event-stream":
        return not stream
    return stream or not (media_type == "application/json" or media_type.endswith("+json"))


class Usefulness:
    """Reads one answer; a finding is final."""

    def __init__(self, api: Api) -> None:
        self._roots = _ROOTS.get(api, {}.keys())
        self.is_begun = False
        """Whether any part of the answer could be read."""
        self.found: Finding = None if self._roots else GOOD
        """The finding; None while undecided."""
        self.model = ""
        """Model name in the answer; empty if none."""
        self.form = ""
        """The names of the members that hold the text."""
        self.chars = 0
        """Characters of text in what was examined; a stream is examined up to the finding."""
        self._beginning = ""

    @property
    def said(self) -> int:
        """A digest of the answer's beginning, by a key of this process; 0 if it says nothing."""
        return hash(self._beginning) if self._beginning else 0

    @property
    def seems(self) -> Kind | None:
        """What the answer looks like, though a client may have asked for it; None if ordinary."""
        text = self._beginning
        most = min(_LONGEST_TOKEN, len(text) // 4)
        if any(text.startswith(text[at:]) for at in range(1, most + 1)):
            return Kind.REPEATED
        return Kind.SHORT if len(text) < _SHORT_CHARS else None

    def look(self, document: dict[str, Any]) -> None:
        """Examine a whole answer, or its next event."""
        nested = document.get("response", document.get("message"))  # in typed events
        if not isinstance(nested, dict):
            nested = {}
        if self._roots.isdisjoint(document) and self._roots.isdisjoint(nested):
            return  # a status page or a greeting event is not an answer
        self.is_begun = True
        name = document.get("model") or nested.get("model")
        if not self.model and isinstance(name, str):
            self.model = name[:_NAME_CHARS]
        values = [document.get(root) for root in self._roots]
        if "output" in self._roots and not self._beginning:  # at its end, a stream repeats it
            values.append(nested.get("output"))
        for name, said in islice(_said(values), _MOST_PARTS):
            self.chars += len(said)
            if len(self._beginning) >= _BEGINNING_CHARS:
                continue
            text = (self._beginning + said[:_READ_CHARS]).lstrip()
            self._beginning = text[:_BEGINNING_CHARS]
            if text and name not in self.form:
                self.form += f"{name} "
            if len(text) >= _BEGINNING_CHARS:
                self.found = GOOD

    def end(self, *, begun: bool) -> None:
        """Handle the answer's end, given whether any byte arrived."""
        if self.found is not None:
            return
        if not self.is_begun:
            self.found = Kind.UNREADABLE if begun else Kind.EMPTY
        else:
            self.found = GOOD if self._beginning else Kind.EMPTY


def _said(parts: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield the content of parts of an answer as text, in order, and the name of its member."""
    left = [("", part) for part in parts[::-1]]
    while left:
        name, part = left.pop()
        kind = type(part)
        if kind is str:
            yield name, part
        elif kind is dict:
            left += [(own, item) for own, item in part.items() if own in _SAYS][::-1]
        elif kind is list:
            left += [(name, item) for item in part[_MOST_PARTS::-1]]
        elif kind is int or kind is float:
            yield name, f"{part} "
