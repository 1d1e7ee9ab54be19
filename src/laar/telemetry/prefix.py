"""Metrics of the prefix index: its memory, and the beliefs it has let go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from laar.prefix.index import IndexStats
from laar.telemetry.families import counter, gauge


def prefix_families(stats: Callable[[], IndexStats] | None) -> Iterator[Metric]:
    """Reads the index, at each scrape.

    Args:
        stats: counters of the index; None where no prefixes are kept: the families are empty then.
    """
    now = stats() if stats is not None else None
    yield gauge(
        "laar_prefix_index_bytes",
        "Estimated bytes of the prefix index; prefix.max_bytes is the limit.",
        now.size_bytes if now else (),
    )
    yield counter(
        "laar_prefix_blocks_forgotten",
        "Blocks that the prefix index dropped, by cause: capacity (the endpoint's "
        "cache was full), memory (the index was full), disproved (misses).",
        (
            ("capacity", now.evicted_capacity_blocks),
            ("memory", now.evicted_memory_blocks),
            ("disproved", now.disproved_blocks),
        )
        if now
        else (),
        ("cause",),
    )
