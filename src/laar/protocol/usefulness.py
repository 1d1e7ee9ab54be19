"""Judge whether an answer is of any use to the client.

An answer is useful if it has any content: text, reasoning, a tool call, a refusal, a vector. The
content is not judged. Whether the endpoint or the request caused a flaw is decided in
`laar.health.recent`, by comparing endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laar.core.request import Api
from laar.health import GOOD, Kind

Finding = Kind | str | None
"""A kind of failure, `GOOD`, or None while undecided."""

_ROOTS: Mapping[Api, tuple[str, ...]] = {
    Api.CHAT: ("choices",),
    Api.COMPLETIONS: ("choices",),
    Api.MESSAGES: ("content", "content_block", "delta"),
    Api.RESPONSES: ("output", "delta", "item"),
    Api.EMBEDDINGS: ("data", "embeddings"),
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
_DEEPEST = 12
_OWN_ENDS = frozenset((None, "", "stop", "end_turn", "eos", "eos_token", "completed", "abort"))
"""Finish reasons that do not excuse an empty answer."""
_LIMITS = frozenset(("length", "max_tokens", "incomplete"))
_NAME_CHARS = 256
REDIRECTS = range(300, 400)
"""Statuses that no engine sends, but a login page in front may; treated as `Kind.TYPE`."""


def flaw_of_type(media_type: str, api: Api, *, stream: bool) -> bool:
    """Return whether this media type is wrong for an answer, streamed or not."""
    if not media_type:
        return False
    if api is Api.EMBEDDINGS:  # embeddings may be bytes
        return media_type.startswith("text/")
    if media_type == "text/event-stream":
        return not stream
    return stream or not (media_type == "application/json" or media_type.endswith("+json"))


class Usefulness:
    """Judges one answer; a finding is final.

    Args:
        api: format of the request.
        max_tokens: token limit of the answer; None if unlimited.
    """

    def __init__(self, api: Api, max_tokens: int | None) -> None:
        self._roots = _ROOTS.get(api, ())
        self._max_tokens = max_tokens
        self.is_begun = False
        """Whether any part of the answer could be read."""
        self._reason: object = None
        self._tokens = 0
        self.found: Finding = None if self._roots else GOOD
        """The finding; None while undecided."""
        self.model = ""
        """Model name in the answer; empty if none."""

    def look(self, document: dict[str, Any]) -> None:
        """Examine a whole answer, or its next event."""
        nested = document.get("response", document.get("message"))  # in typed events
        if not isinstance(nested, dict):
            nested = {}
        if not any(root in document or root in nested for root in self._roots):
            return  # a status page or a greeting event is not an answer
        self.is_begun = True
        name = document.get("model") or nested.get("model")
        if not self.model and isinstance(name, str):
            self.model = name[:_NAME_CHARS]
        if any(_says(document.get(root), 0) for root in self._roots) or (
            "output" in self._roots and _says(nested.get("output"), 0)
        ):
            self.found = GOOD
            return
        self._note_end(document, nested)

    def end(self, tokens: int | None, *, begun: bool) -> None:
        """Handle the answer's end, given the engine's token count and whether any byte arrived."""
        if self.found is not None:
            return
        if not self.is_begun:
            self.found = Kind.UNREADABLE if begun else Kind.EMPTY
        elif self._reason in _OWN_ENDS or (
            # At the limit, all tokens may be hidden reasoning, unless there is at most one.
            self._reason in _LIMITS
            and (self._tokens if tokens is None else tokens) <= 1
            and (self._max_tokens is None or self._max_tokens > 1)
        ):
            self.found = Kind.EMPTY

    def _note_end(self, document: dict[str, Any], nested: dict[str, Any]) -> None:
        choices = document.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            self._tokens += 1
            choice = choices[0]
            # The engine may generate a stop word first.
            own = choice.get("stop_reason")
            reason = "stop word" if isinstance(own, str) else choice.get("finish_reason")
        else:
            delta = document.get("delta")
            reason = document.get("stop_reason") or nested.get("status") or document.get("status")
            if isinstance(delta, dict):
                self._tokens += 1
                reason = delta.get("stop_reason")
        if isinstance(reason, str) and reason:
            self._reason = reason


def _says(value: object, depth: int) -> bool:
    """Return whether a part of an answer has any content; nesting is limited."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, int | float):
        return True
    if depth == _DEEPEST:
        return False
    if isinstance(value, list):
        return any(_says(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return any(name in _SAYS and _says(item, depth + 1) for name, item in value.items())
    return False
