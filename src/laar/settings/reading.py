"""Settings for reading endpoints, requests and answers, and for recording decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from laar.datalayer import probe, scrape
from laar.declaring import Applies
from laar.protocol.stream import StreamSettings
from laar.settings.section import Section, declared


class Readings(Section):
    """Readings from endpoints: metrics, round trips, models and names."""

    applies: ClassVar = Applies.AFTER_RESTART

    scrape_interval_s: Annotated[float, Ge(0.05), Le(60)] = scrape.INTERVAL_S
    """Seconds between scrapes of an endpoint's metrics. laar counts requests itself, and scrapes
    only correct its counts, so a shorter interval gains nothing. After 10 s without requests in
    flight, the interval is five times as long, up to 5 s: readings are ignored after 10 s."""
    probe_interval_s: Annotated[float, Ge(0.1), Le(600)] = probe.INTERVAL_S
    """Seconds between round-trip probes of an endpoint. With over 250 endpoints the interval is
    longer, since at most 50 are probed per second; while laar is idle, it is five times as long."""


@declared(StreamSettings, "max_body_bytes", "opaque_paths", "any_model_paths", "denied_paths")
class Bodies(Section):
    """Reading of request bodies and answers."""

    applies: ClassVar = Applies.AT_ONCE

    max_held_bytes: Annotated[int, Ge(1 << 20), Le(64 << 30)] = 512 << 20
    """Maximum total size, in bytes, of request bodies that are incomplete (full duplex) or
    waiting to be read (over 1 MB); requests beyond that get 503. Without a limit, many slow uploads
    could exhaust memory. At the limit, uploads slower than 16 KiB/s are dropped to make room."""
    sample_answers: Annotated[float, Ge(0), Le(1)] = 0.01
    """Share of answers read as they pass (native shape), to learn the time to first token, usage
    and prefill speed (`flow`). Reading costs about 50 us per chunk, hence 1 in 100. 0: none."""
    sample_every_s: Annotated[float, Gt(0), Le(3600)] = 0.25
    """Seconds after which an answer is read regardless of `sample_answers`, so that laar also
    learns from sparse traffic, and soon distinguishes devices of different speeds. Suspended while
    the answers being read exceed 1,000 chunks a second, which take 4 to 10 % of a core."""


@declared(StreamSettings, "answers")
class Headers(Section):
    """Headers that laar adds to answers."""


class Decisions(Section):
    """Records of decisions. They never contain any part of a prompt."""

    applies: ClassVar = Applies.AFTER_RESTART

    log: Path | None = None
    """File with one JSON line per decision, written once its request has ended, and one per outcome
    reported later. Its directory must exist. None: no log."""
    viewers_token_file: Path | None = None
    """File with the token that the admin port requires, except for metrics, health and /outcomes:
    `Authorization: Bearer ...`, or in the page's form. None: everything else is served on
    loopback only."""
