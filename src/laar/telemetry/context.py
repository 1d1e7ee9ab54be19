"""Counters of the context hook's actions and results by route, shown on two pages.

Requests with documents form three groups: `hook`, ordered by the hook; `control`, left unchanged
for comparison; `observed`, left unchanged because the hook only observes. Expected hits come from
the hook's own index; measured ones from the engines' usage and the first byte of answers that were
read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laar.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from laar.context.hook import ContextHook, HookResult

GROUPS = ("hook", "control", "observed")

_ADDED_BOUNDS_S = (2e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 2e-3, 5e-3)


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


class RouteTally:
    """The counters of one route, and the hook whose memory is shown."""

    def __init__(self, name: str, hook: ContextHook) -> None:
        self.name = name
        self.hook = hook
        self.added_s = Histogram(_ADDED_BOUNDS_S)
        self.reasons: Counter[str] = Counter()
        self.shapes: Counter[str] = Counter()
        self.groups = {group: Group() for group in GROUPS}

    @property
    def is_off(self) -> bool:
        """Whether the hook has disabled itself for the route."""
        gain = self.hook.gains().get(self.name)
        return gain is not None and gain.off

    def forget_groups(self) -> None:
        """Restart the comparison."""
        self.groups = {group: Group() for group in GROUPS}
