"""Counters of the context hook's actions and results by route, shown on two pages.

Requests with documents form three groups: `hook`, ordered by the hook; `control`, left unchanged
for comparison; `observed`, left unchanged because the hook only observes. Expected hits come from
the hook's own index; measured ones from the engines' usage and the first byte of answers that were
read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from laar.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from laar.context.hook import ContextHook, HookResult

GROUPS = ("hook", "control", "observed")

_ADDED_BOUNDS_S = (2e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 2e-3, 5e-3)


@dataclass(slots=True)
class Mean:
    """Mean of the added values; 0 if there are none."""

    n: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        """Return the mean."""
        return self.total / self.n if self.n else 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.n += 1
        self.total += value


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
        cached_share: mean cached share of a prompt.
        ttft_s: mean seconds to the first token.
    """

    eligible: int = 0
    document_bytes: int = 0
    expected_bytes: int = 0
    received_bytes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cached_share: Mean = field(default_factory=Mean)
    ttft_s: Mean = field(default_factory=Mean)

    @property
    def ttft_seconds(self) -> float:
        """Return the sum of the measured times to first token."""
        return self.ttft_s.total

    @property
    def ttft_samples(self) -> int:
        """Return the number of measured times to first token."""
        return self.ttft_s.n

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
            self.ttft_s.add(ttft_s)
        if prompt_tokens and cached_tokens is not None:
            self.prompt_tokens += prompt_tokens
            self.cached_tokens += cached_tokens
            self.cached_share.add(min(1.0, cached_tokens / prompt_tokens))


class RouteTally:
    """The counters of one route.

    Args:
        name: name of the route.
        hook: the hook whose memory is shown.
    """

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
