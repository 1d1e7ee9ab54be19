"""Metrics of sharing, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from laar.sharing.outbox import MAX_WAITING_BYTES
from laar.telemetry.families import counter, gauge

if TYPE_CHECKING:
    from laar.server.sharing.sharer import Sharer


def sharing_families(sharer: Sharer) -> Iterator[Metric]:
    """Records sent to other pickers, and records received from them; read at each scrape."""
    sharing = sharer.sharing
    yield gauge(
        "laar_share_connected",
        "1 while the store, or the hub of the workers, is reachable; 0 while this picker is alone.",
        sharer.connected,
    )
    yield gauge(
        "laar_share_peers",
        "Other pickers that sent something within the lease.",
        len(sharing.peers),
    )
    yield gauge(
        "laar_share_restored_prompts",
        "Prompts whose blocks this picker restored from a snapshot at its start.",
        sharer.restored,
    )
    yield gauge(
        "laar_share_age_seconds",
        "Age in seconds of the last batch of another picker when it was taken, by the "
        "two wall clocks.",
        sharing.age_s,
    )
    yield gauge(
        "laar_share_waiting_bytes",
        f"Bytes of records not sent yet, at most {MAX_WAITING_BYTES:,}.",
        sharing.outbox.waiting_bytes,
    )
    ways = (("sent", sharing.outbox.sent), ("taken", sharing.taken))
    yield counter(
        "laar_share_records",
        "Records by kind and way: sent to other pickers, or taken from them.",
        (((kind, way), count) for way, counts in ways for kind, count in counts.items()),
        ("kind", "way"),
    )
    yield counter(
        "laar_share_bytes",
        "Bytes of batches, by way: sent to other pickers, or taken from them.",
        (("sent", sharer.sent_bytes), ("taken", sharer.received_bytes)),
        ("way",),
    )
    yield counter(
        "laar_share_lost",
        "Losses between pickers: batches missed or doubled (received twice), records "
        "dropped before they were sent, prefixes whose predecessor is unknown "
        "(unknown-prefix), leases that ended, and interruptions of the connection.",
        (
            ("missed", sharing.missed),
            ("doubled", sharing.doubled),
            ("dropped", sharing.outbox.dropped),
            ("unknown-prefix", sharing.unknown_prefixes),
            ("lease", sharing.peers.ended_by_lease),
            ("interruption", sharer.interruptions),
        ),
        ("what",),
    )
    yield counter(
        "laar_share_refused",
        "Batches and records that were refused, by reason: no-batch, schema, "
        "namespace, too-long, key (hashed with another secret), record, fault.",
        sharing.refused.items(),
        ("reason",),
    )
