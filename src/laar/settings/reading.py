"""What is read: endpoints, requests and answers, and the decisions kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from laar.datalayer import dns, probe, scrape, served_names
from laar.protocol.stream import StreamSettings
from laar.settings.section import Applies, Section, declared
from laar.telemetry.decisions import MAX_DECISIONS

__all__ = ["Bodies", "Decisions", "Headers", "Readings"]


class Readings(Section):
    """How endpoints are read."""

    applies: ClassVar = Applies.AFTER_RESTART

    scrape_interval_s: Annotated[float, Ge(0.05), Le(60)] = scrape.INTERVAL_S
    """Seconds between two scrapes of an endpoint's metrics. Laar counts its own requests, so a
    scrape only corrects; more often buys nothing."""
    scrape_timeout_s: Annotated[float, Gt(0), Le(60)] = scrape.TIMEOUT_S
    """Seconds after which a scrape has failed."""
    probe_interval_s: Annotated[float, Ge(0.1), Le(600)] = probe.INTERVAL_S
    """Seconds between two round-trip probes of an endpoint."""
    probe_timeout_s: Annotated[float, Gt(0), Le(60)] = probe.TIMEOUT_S
    """Seconds after which a probe has failed."""
    models_interval_s: Annotated[float, Ge(0.1), Le(3600)] = served_names.INTERVAL_S
    """Seconds between two looks at an endpoint's /v1/models, where adapters that were loaded
    meanwhile are found. Loading one takes seconds and is rare."""
    resolve_interval_s: Annotated[float, Ge(1), Le(3600)] = dns.INTERVAL_S
    """Seconds between two look-ups of endpoints' DNS names."""


@declared(StreamSettings, "max_body_bytes", "opaque_paths", "denied_paths")
class Bodies(Section):
    """What is read of requests and answers."""

    applies: ClassVar = Applies.AT_ONCE

    max_held_bytes: Annotated[int, Ge(1 << 20), Le(64 << 30)] = 512 << 20
    """Request bodies held together in the gateway shape while they come; 503 beyond. Uploads may be
    slow, and many at once would take the memory of all else."""
    sample_answers: Annotated[float, Ge(0), Le(1)] = 0.01
    """Share of answers that are read as they pass (native shape), for time to first token, usage
    and the pace of prefills (`flow`). Reading costs about 50 us a chunk, so 1 in 100; 0 reads
    none."""
    sample_every_s: Annotated[float, Gt(0), Le(3600)] = 1.0
    """Seconds after which an answer is read whatever the share says, so that thin traffic still
    teaches; one a second costs nothing."""


@declared(StreamSettings, "answers")
class Headers(Section):
    """Headers that laar adds to answers."""


class Decisions(Section):
    """What is kept of decisions. Never any of a prompt."""

    applies: ClassVar = Applies.AFTER_RESTART

    remember: Annotated[int, Ge(1), Le(1_000_000)] = MAX_DECISIONS
    """Decisions kept in memory for the page and /decisions, some 3 KB each; 64 MiB is the most they
    may take together."""
    log: Path | None = None
    """File for one JSON line for each decision once its request has ended. None: no log. Its
    directory must exist."""
    log_sample: Annotated[float, Applies.AT_ONCE, Ge(0), Le(1)] = 1.0
    """Share of decisions that are logged. All by default: a line costs about 10 us."""
    log_max_bytes: Annotated[int, Ge(1 << 16), Le(1 << 40)] = 100 << 20
    """Size of the log after which a new file is begun; 100 MiB are some 50,000 decisions among five
    endpoints."""
    log_keep: Annotated[int, Ge(0), Le(1000)] = 5
    """Old log files kept, as `<log>.1` (the newest) and so on."""
    viewers_token_file: Path | None = None
    """File with a token that the page, /explain, /decisions and /config ask for, as `Authorization:
    Bearer ...` or in the page's form. Without one they are shown on loopback only."""
