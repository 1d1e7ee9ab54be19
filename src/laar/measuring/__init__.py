"""Measure models by asking each of them questions with checkable answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How to send a measurement's questions to the endpoints."""

    concurrency: int = 1
    """Requests in flight at each endpoint."""
    stream: bool = True
    """Whether to stream answers, in order to measure the time to first token."""
    timeout_s: float = 600.0
    """Timeout of one request."""
    max_tokens: int | None = None
    """Token limit of an answer; None uses the endpoint's."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers sent with each request, such as ``authorization``."""

    @property
    def params(self) -> dict[str, object]:
        """Fields of each request besides model and messages."""
        params: dict[str, object] = {"temperature": 0}
        if self.stream:
            params |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.max_tokens is not None:
            params["max_tokens"] = self.max_tokens
        return params
