"""Actions and results of the context hook, by route: counted here, shown on two pages.

Three groups of requests with documents: `hook`, whose order the hook chose; `control`, left as
received for comparison; `observed`, left as received because the hook only looks. Expected hits
come from the hook's own index; measured ones come from the engines' usage and from the first byte,
of answers that were read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from laar.telemetry.families import Histogram, counter, gauge, histogram

if TYPE_CHECKING:
    from laar.context.hook import ContextHook, HookResult

GROUPS = ("hook", "control", "observed")

_MEMORIES = ("index_documents", "index_orders", "index_capacity", "index_scopes", "memo_entries")
_CAUSES = ("capacity", "ttl", "told")

_ADDED_BOUNDS_S = (2e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 2e-3, 5e-3)


@dataclass(slots=True)
class Mean:
    """Mean of the added values; 0 without any."""

    n: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        """The mean."""
        return self.total / self.n if self.n else 0.0

    def add(self, value: float) -> None:
        """Takes in one value."""
        self.n += 1
        self.total += value


@dataclass(slots=True)
class Group:
    """One group's requests with documents.

    Args:
        eligible: requests decided.
        document_bytes: bytes of their documents.
        expected_bytes: those of them that the hook's order would find cached.
        received_bytes: the same for the order as received.
        prompt_tokens: prompt tokens as engines counted them, where usage was read.
        cached_tokens: those of them that were found in the engines' caches.
        cached_share: cached share of the prompt, a mean over requests.
        ttft_s: seconds to the first token, a mean over requests.
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
        """Sum of the measured times to first token."""
        return self.ttft_s.total

    @property
    def ttft_samples(self) -> int:
        """Number of measured times to first token."""
        return self.ttft_s.n

    def decided(self, result: HookResult) -> None:
        """Counts a request."""
        self.eligible += 1
        self.document_bytes += result.document_bytes
        self.expected_bytes += result.predicted_hit_bytes
        self.received_bytes += result.baseline_hit_bytes

    def measured(
        self, ttft_s: float | None, prompt_tokens: int | None, cached_tokens: int | None
    ) -> None:
        """Counts an answer that was read; None for a figure that it did not show."""
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
        hook: the hook whose memories are shown.
    """

    def __init__(self, name: str, hook: ContextHook) -> None:
        self.name = name
        self.hook = hook
        self.added = Histogram(_ADDED_BOUNDS_S)
        self.reasons: Counter[str] = Counter()
        self.shapes: Counter[str] = Counter()
        self.groups = {group: Group() for group in GROUPS}

    @property
    def is_off(self) -> bool:
        """Whether the hook has switched itself off here."""
        gain = self.hook.gains().get(self.name)
        return gain is not None and gain.off

    def forget_groups(self) -> None:
        """Starts the comparison afresh."""
        self.groups = {group: Group() for group in GROUPS}


def context_families(routes: Callable[[], Sequence[RouteTally]]) -> Iterator[Metric]:
    """Reads the counters of the routes, whose names come from the settings, at each scrape."""
    tallies = routes()
    stats = [(route.name, route.hook.stats()) for route in tallies]
    yield counter(
        "laar_context_requests",
        "Request bodies that the context hook examined, by outcome.",
        (((route.name, reason), n) for route in tallies for reason, n in route.reasons.items()),
        ("route", "reason"),
    )
    yield counter(
        "laar_context_lists",
        "Lists of documents found, by shape; unknown_* if documents were announced "
        "but their shape is unknown.",
        (((route.name, shape), n) for route in tallies for shape, n in route.shapes.items()),
        ("route", "shape"),
    )
    yield gauge(
        "laar_context_off",
        "1 if the context hook switched itself off on the route, else 0.",
        ((route.name, float(route.is_off)) for route in tallies),
        ("route",),
    )
    yield gauge(
        "laar_context_entries",
        "Entries in the memories of the context hook, by memory.",
        (((name, memory), of[memory]) for name, of in stats for memory in _MEMORIES),
        ("route", "memory"),
    )
    yield counter(
        "laar_context_evicted",
        "Remembered orders that were dropped, by cause.",
        (((name, why), of[f"index_evicted_{why}"]) for name, of in stats for why in _CAUSES),
        ("route", "cause"),
    )
    yield histogram(
        "laar_context_added_seconds",
        "Seconds that the context hook added to a request.",
        {route.name: route.added for route in tallies},
        ("route",),
    )
    groups = [
        ((route.name, name), group) for route in tallies for name, group in route.groups.items()
    ]
    for name, text in _GROUP_FIGURES.items():
        yield counter(
            f"laar_context_{name}",
            text,
            ((key, float(getattr(group, name))) for key, group in groups),
            ("route", "group"),
        )


_GROUP_FIGURES = {
    "eligible": "Requests with documents that could be ordered.",
    "document_bytes": "Bytes of documents that could be ordered.",
    "expected_bytes": "Document bytes expected in the cache with the hook's order.",
    "received_bytes": "Document bytes expected in the cache with the order as received.",
    "prompt_tokens": "Prompt tokens of requests with documents whose usage was read.",
    "cached_tokens": "Prompt tokens of requests with documents, found in the engines' caches.",
    "ttft_seconds": "Sum of the seconds from decision to first byte, of answers that were read.",
    "ttft_samples": "Requests whose time to first token laar_context_ttft_seconds_total includes.",
}
"""Help texts by attribute of `Group`."""
