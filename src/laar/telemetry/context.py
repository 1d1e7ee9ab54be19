"""Counters of the requests that the context hook may order, shown on two pages.

Requests with documents form three groups: `hook`, ordered by the hook; `control`, left unchanged
for comparison; `observed`, left unchanged because the hook only observes. Expected hits come from
the hook's own index; measured ones from the engines' usage and the first byte of answers that were
read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laar.context.hook import HookResult

GROUPS = ("hook", "control", "observed")


@dataclass(slots=True)
class Group:
    """One group's requests with documents.

    Args:
        eligible: number of requests decided.
        document_bytes: total bytes of their documents.
        expected_bytes: bytes expected to be cached in the hook's order.
        received_bytes: bytes expected to be cached in the order received.
        prompt_tokens: prompt tokens as counted by engines, if usage was read.
        cached_tokens: prompt tokens found in the engines' caches.
        answers: number of answers with these counts.
        cached_shares: sum of their prompts' cached shares.
        ttft_samples: number of measured times to first token.
        ttft_seconds: sum of these times.
    """

    eligible: int = 0
    document_bytes: int = 0
    expected_bytes: int = 0
    received_bytes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answers: int = 0
    cached_shares: float = 0.0
    ttft_samples: int = 0
    ttft_seconds: float = 0.0

    @property
    def cached_share(self) -> float:
        """Return the mean cached share of a prompt; 0 without answers."""
        return self.cached_shares / max(self.answers, 1)

    def decided(self, result: HookResult) -> None:
        """Count a request."""
        self.eligible += 1
        self.document_bytes += result.document_bytes
        self.expected_bytes += result.predicted_hit_bytes
        self.received_bytes += result.baseline_hit_bytes

    def measured(
        self, ttft_s: float | None, prompt_tokens: int | None, cached_tokens: int | None
    ) -> None:
        """Count an answer that was read; figures that it lacks are None."""
        if ttft_s is not None:
            self.ttft_samples += 1
            self.ttft_seconds += ttft_s
        if prompt_tokens and cached_tokens is not None:
            self.prompt_tokens += prompt_tokens
            self.cached_tokens += cached_tokens
            self.answers += 1
            self.cached_shares += min(1.0, cached_tokens / prompt_tokens)
