"""Metrics of the prefix index: its memory, and the beliefs it has let go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from laar.prefix.index import IndexStats
from laar.telemetry.families import counter, gauge

__all__ = ["PrefixMetrics"]


class PrefixMetrics(Collector):
    """Reads the index at each scrape.

    Args:
        stats: counters of the index; None where no prefixes are kept: the families are empty then.
    """

    def __init__(self, stats: Callable[[], IndexStats] | None) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Makes the metric families; called for each scrape."""
        stats = self._stats() if self._stats is not None else None
        yield gauge(
            "laar_prefix_index_bytes",
            "Estimated bytes of the prefix index; prefix.max_bytes is the limit.",
            stats.size_bytes if stats else (),
        )
        yield counter(
            "laar_prefix_blocks_forgotten",
            "Blocks that the prefix index dropped, by cause: capacity (the endpoint's "
            "cache was full), memory (the index was full), disproved (misses).",
            (
                ("capacity", stats.evicted_capacity_blocks),
                ("memory", stats.evicted_memory_blocks),
                ("disproved", stats.disproved_blocks),
            )
            if stats
            else (),
            ("cause",),
        )
