"""Settings for the export to an OpenTelemetry collector."""

from __future__ import annotations

from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator

from laar.declaring import Applies
from laar.settings.section import Section

ENVIRONMENT = "environment"


def _where(value: str) -> str:
    if value == ENVIRONMENT:
        return value
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path in ("", "/"):
        raise ValueError(
            f"give a whole URL, such as http://127.0.0.1:4318/v1/traces, or `{ENVIRONMENT}`"
        )
    if "@" in parts.netloc or parts.query:
        raise ValueError(
            "settings are shown by /config: keep secrets in OTEL_EXPORTER_OTLP_HEADERS"
        )
    return value


Where = Annotated[str, AfterValidator(_where)]


class Otlp(Section):
    """OpenTelemetry over OTLP/HTTP; needs the extra `otel`.

    The standard environment variables set headers, timeouts, queues and the resource.
    """

    applies: ClassVar = Applies.AFTER_RESTART

    traces: Where | None = None
    """URL for traces, usually http://HOST:4318/v1/traces, or `environment` to use
    OTEL_EXPORTER_OTLP_ENDPOINT. Each decision whose client's trace is sampled becomes a span of
    that trace. None: no spans."""
