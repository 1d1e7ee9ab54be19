"""What goes to an OpenTelemetry collector, and where."""

from __future__ import annotations

from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import AfterValidator

from laar.settings.section import Applies, Section

__all__ = ["ENVIRONMENT", "Otlp"]

ENVIRONMENT = "environment"


def _where(value: str) -> str:
    if value == ENVIRONMENT:
        return value
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path in ("", "/"):
        raise ValueError(
            f"give a whole URL, such as http://127.0.0.1:4318/v1/traces, or `{ENVIRONMENT}`"
        )
    if parts.username or parts.query:
        raise ValueError(
            "settings are shown by /config: keep secrets in OTEL_EXPORTER_OTLP_HEADERS"
        )
    return value


Where = Annotated[str, AfterValidator(_where)]


class Otlp(Section):
    """OpenTelemetry over OTLP/HTTP, each signal on its own; needs the extra `otel`.

    What is not set here the environment says, as everywhere: headers, time-outs, queues, the
    resource.
    """

    applies: ClassVar = Applies.AFTER_RESTART

    traces: Where | None = None
    """URL that takes traces, mostly http://HOST:4318/v1/traces, or `environment` to go by
    OTEL_EXPORTER_OTLP_ENDPOINT. With it each decision whose client's trace is sampled becomes a
    span of that trace. None: no spans."""
    logs: Where | None = None
    """URL that takes log records, mostly http://HOST:4318/v1/logs, or `environment`. The decision
    log's lines go there, the share of them that `decisions.log_sample` says, with or without a file
    beside it. None: none do."""
    service_name: Annotated[str | None, MinLen(1), MaxLen(255)] = None
    """`service.name` of all that is sent. None: OTEL_SERVICE_NAME, or what OTEL_RESOURCE_ATTRIBUTES
    says, or `laar`."""
    sample_without_parent: Annotated[float, Applies.AT_ONCE, Ge(0), Le(1)] = 0.0
    """Share of requests that come without a trace for which one is begun. None by default: who asks
    decides what is traced. OTEL_TRACES_SAMPLER is not read."""
