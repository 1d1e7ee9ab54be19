"""How models are asked when they are measured; apart, since the commands import it at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How the questions of a measurement are put to the endpoints."""

    concurrency: int = 1
    """Requests in flight at each endpoint."""
    rate_per_s: float | None = None
    """Requests started per second over all endpoints; None for no limit."""
    stream: bool = True
    """Whether answers are streamed, which shows the time to the first token."""
    timeout_s: float = 600.0
    """Time-out of one request."""
    max_tokens: int | None = None
    """Token limit of an answer; None leaves it to the endpoint."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers sent with each request, such as ``authorization``."""

    @property
    def params(self) -> dict[str, object]:
        """The fields of each request beside its model and its messages."""
        params: dict[str, object] = {"temperature": 0}
        if self.stream:
            params |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.max_tokens is not None:
            params["max_tokens"] = self.max_tokens
        return params
