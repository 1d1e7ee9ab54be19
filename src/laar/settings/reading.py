"""What is read: endpoints, requests and answers, and the decisions kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from laar.protocol.headers import Answers
from laar.protocol.paths import DENIED_PATHS
from laar.settings.section import Applies, Section

__all__ = ["Bodies", "Decisions", "Headers", "Readings"]


class Readings(Section):
    """How endpoints are read."""

    applies: ClassVar = Applies.AFTER_RESTART

    scrape_interval_s: float = Field(
        1.0,
        ge=0.05,
        le=60,
        description="Seconds between two scrapes of an endpoint's metrics. Laar counts its own "
        "requests, so a scrape only corrects; more often buys nothing.",
    )
    scrape_timeout_s: float = Field(
        2.0, gt=0, le=60, description="Seconds after which a scrape has failed."
    )
    probe_interval_s: float = Field(
        5.0, ge=0.1, le=600, description="Seconds between two round-trip probes of an endpoint."
    )
    probe_timeout_s: float = Field(
        2.0, gt=0, le=60, description="Seconds after which a probe has failed."
    )
    models_interval_s: float = Field(
        30.0,
        ge=0.1,
        le=3600,
        description="Seconds between two looks at an endpoint's /v1/models, where adapters that "
        "were loaded meanwhile are found. Loading one takes seconds and is rare.",
    )
    resolve_interval_s: float = Field(
        10.0, ge=1, le=3600, description="Seconds between two look-ups of endpoints' DNS names."
    )


class Bodies(Section):
    """What is read of requests and answers."""

    applies: ClassVar = Applies.AT_ONCE

    max_body_bytes: Annotated[int, Applies.AFTER_RESTART] = Field(
        32 << 20,
        ge=1024,
        le=1 << 30,
        description="Longest request body in the gateway shape; 413 above it. In the native shape "
        "Envoy's buffer limit says the same, so keep both equal.",
    )
    max_held_bytes: int = Field(
        512 << 20,
        ge=1 << 20,
        le=64 << 30,
        description="Request bodies held together in the gateway shape while they come; 503 "
        "beyond. Uploads may be slow, and many at once would take the memory of all else.",
    )
    opaque_paths: tuple[str, ...] = Field(
        ("/v1/audio/", "/v1/images/", "/v1/files"),
        description="Path prefixes whose bodies are never read; their requests go to any endpoint.",
    )
    denied_paths: tuple[str, ...] = Field(
        DENIED_PATHS,
        max_length=1000,
        description="Paths that get 403, by their ends and however they are written: those of vLLM "
        "and SGLang that put an engine to sleep, load weights, empty caches or show its inside. An "
        "empty list forwards all. laar's own bootstraps refuse the default list by themselves.",
    )
    sample_answers: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of answers that are read as they pass (native shape), for time to first "
        "token, usage and the pace of prefills (`flow`). Reading costs about 50 us a chunk, so "
        "1 in 100; 0 reads none.",
    )
    sample_every_s: float = Field(
        1.0,
        gt=0,
        le=3600,
        description="Seconds after which an answer is read whatever the share says, so that thin "
        "traffic still teaches; one a second costs nothing.",
    )


class Headers(Section):
    """What clients are told with an answer."""

    applies: ClassVar = Applies.AT_ONCE

    answers: Answers = Field(
        Answers.AUTO,
        description="Which x-laar-* headers an answer has. `all`; `ids`: without x-laar-cost-ms, "
        "x-laar-endpoint and x-laar-overhead-us; `none`: then clients cannot name the models that "
        "failed, nor report outcomes; `auto`: `ids` for requests that name a tenant, else `all`. "
        "The cost says whether a prompt, somebody else's too, was sent before, and the endpoint is "
        "an inner address: nothing for tenants who don't trust each other.",
    )


class Decisions(Section):
    """What is kept of decisions. Never any of a prompt."""

    applies: ClassVar = Applies.AFTER_RESTART

    remember: int = Field(
        2000,
        ge=1,
        le=1_000_000,
        description="Decisions kept in memory for the page and /decisions, some 3 KB each; 64 MiB "
        "is the most they may take together.",
    )
    log: Path | None = Field(
        None,
        description="File for one JSON line for each decision once its request has ended. None: no "
        "log. Its directory must exist.",
    )
    log_sample: Annotated[float, Applies.AT_ONCE] = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of decisions that are logged. All by default: a line costs about 10 us.",
    )
    log_max_bytes: int = Field(
        100 << 20,
        ge=1 << 16,
        le=1 << 40,
        description="Size of the log after which a new file is begun; 100 MiB are some 50,000 "
        "decisions among five endpoints.",
    )
    log_keep: int = Field(
        5, ge=0, le=1000, description="Old log files kept, as `<log>.1` (the newest) and so on."
    )
    viewers_token_file: Path | None = Field(
        None,
        description="File with a token that the page, /explain, /decisions and /config ask for, as "
        "`Authorization: Bearer ...` or in the page's form. Without one they are shown on loopback "
        "only.",
    )
