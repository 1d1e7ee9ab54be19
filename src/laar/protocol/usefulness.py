"""Whether an answer is of use to the client that it goes to.

An answer is useful if it says anything at all: a text, a thought, a call of a tool, a refusal, a
vector. What it says is not looked at. Nothing here knows the endpoint: whether a flaw is its own or
the request's is found by its siblings (`laar.health.recent`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laar.core.request import Api
from laar.health import GOOD, Kind

Finding = Kind | str | None
"""A kind of failure, `GOOD`, or None while nothing is known."""

_ROOTS: Mapping[Api, tuple[str, ...]] = {
    Api.CHAT: ("choices",),
    Api.COMPLETIONS: ("choices",),
    Api.MESSAGES: ("content", "content_block", "delta"),
    Api.RESPONSES: ("output", "delta", "item"),
    Api.EMBEDDINGS: ("data", "embeddings"),
}
"""Members that hold what an answer, or one event of it, says."""
_SAYS = frozenset(
    """
    arguments audio content data delta embedding encrypted_content function function_call image_url
    images input logprobs message name output partial_json reasoning reasoning_content refusal
    summary text thinking token token_ids tokens tool_calls
    """.split()  # noqa: SIM905 - one a line would be a page
)
"""Members below these that may hold a part of it."""
_DEEPEST = 12
_OWN_ENDS = frozenset((None, "", "stop", "end_turn", "eos", "eos_token", "completed", "abort"))
"""Reasons of an end that excuse no empty answer."""
_LIMITS = frozenset(("length", "max_tokens", "incomplete"))
_NAME_CHARS = 256


def flaw_of_type(media_type: str, api: Api, *, stream: bool) -> bool:
    """Return whether a body of this type is no answer to a request: whole, or a stream."""
    if not media_type:
        return False
    if api is Api.EMBEDDINGS:  # bytes are right, too
        return media_type.startswith("text/")
    if media_type == "text/event-stream":
        return not stream
    return stream or not (media_type == "application/json" or media_type.endswith("+json"))


class Usefulness:
    """What is known of one answer. It is found once, and is never unfound.

    Args:
        api: format of the request.
        max_tokens: limit of the answer; None where there is none.
    """

    def __init__(self, api: Api, max_tokens: int | None) -> None:
        self._roots = _ROOTS.get(api, ())
        self._max_tokens = max_tokens
        self._documents = 0
        self._reason: object = None
        self._tokens = 0
        self.found: Finding = None if self._roots else GOOD
        """Whether it is useful."""
        self.model = ""
        """Name that it gives its model; empty where it gives none."""

    @property
    def is_begun(self) -> bool:
        """Whether anything of it could be read."""
        return self._documents > 0

    def look(self, document: dict[str, Any]) -> None:
        """Look at an answer, or at the next event of one."""
        nested = document.get("response", document.get("message"))  # of events with a type
        if not isinstance(nested, dict):
            nested = {}
        if not any(root in document or root in nested for root in self._roots):
            return  # neither a status page nor an event that only says hello is an answer
        self._documents += 1
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
        """End the answer, of so many tokens by the engine's own count; `begun` if a byte came."""
        if self.found is not None:
            return
        if not self._documents:
            self.found = Kind.UNREADABLE if begun else Kind.EMPTY
        elif self._reason in _OWN_ENDS or (
            # At its limit an answer may be hidden thoughts alone, unless it is far from it.
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
            # A stop word may come first.
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
    """Return whether there is anything in a part of an answer, at any depth."""
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
