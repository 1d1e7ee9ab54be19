"""What goes to an OpenTelemetry collector, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from laar.config.section import Applies, Section

__all__ = ["Otlp"]


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path in ("", "/"):
        raise ValueError("give a whole URL, such as http://127.0.0.1:4318/v1/traces")
    if parts.username or parts.query:
        raise ValueError("settings are shown by /config: keep secrets in `otlp.headers_file`")
    return value


Url = Annotated[str, AfterValidator(_http_url)]


class Otlp(Section):
    """OpenTelemetry over OTLP/HTTP, each signal on its own; needs the extra `otel`."""

    applies: ClassVar = Applies.AFTER_RESTART

    traces: Url | None = Field(
        None,
        description="URL that takes traces, mostly http://HOST:4318/v1/traces. With it each "
        "decision whose client's trace is sampled becomes a span of that trace. None: no spans.",
    )
    logs: Url | None = Field(
        None,
        description="URL that takes log records, mostly http://HOST:4318/v1/logs. The decision "
        "log's lines go there, the share of them that `decisions.log_sample` says, with or without "
        "a file beside it. None: none do.",
    )
    service_name: str = Field(
        "laar",
        min_length=1,
        max_length=255,
        description="`service.name` of all that is sent. Further attributes of the resource come "
        "from the environment, OTEL_RESOURCE_ATTRIBUTES.",
    )
    sample_without_parent: Annotated[float, Applies.AT_ONCE] = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of requests that come without a trace for which one is begun. None by "
        "default: who asks decides what is traced.",
    )
    headers_file: Path | None = Field(
        None,
        description="File of headers to send along, `name: value` on each line; for the "
        "collector's token. Read at start.",
    )
    timeout_s: float = Field(
        5.0, gt=0, le=60, description="Seconds after which an attempt to send has failed."
    )
    max_queued: int = Field(
        5000,
        ge=1,
        le=1_000_000,
        description="Spans, and as many log records, that wait while the collector doesn't "
        "take them; 2 to 10 KB each. Beyond that new ones are dropped and counted.",
    )
