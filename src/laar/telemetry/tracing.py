"""Export decisions to OpenTelemetry as spans of their clients' traces.

A span covers the decision, including time in the queue; it is sent when the request has ended, so
that it can include the outcome. It is built from the record that `/decisions` shows, so the two
agree, and it contains no part of a prompt.

Names follow OpenTelemetry's conventions, if any exist (``gen_ai.*``, ``http.*``, ``error.type``).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from laar.errors import RequestError, unusable_environment
from laar.explain.decision_record import DecisionRecord
from laar.explain.record import shown
from laar.request import Request, Trace

LAST_S = 1.0
"""Maximum seconds for sending unsent spans at shutdown: a collector that is down must not delay a
picker's exit."""

_POLL_S = 0.01
_SLICE_S = 0.0005
"""Seconds that encoding threads may hold the GIL; the default of 5 ms would delay decisions."""

NAME = "laar.decision"

_ATTRIBUTES = {
    "id": "laar.decision.id",
    "request_id": "laar.request.id",
    "mode": "laar.decision.mode",
    "policy": "laar.decision.policy",
    "reason": "laar.decision.reason",
    "asked_model": "gen_ai.request.model",
    "language": "laar.request.language",
    "bucket_tokens": "laar.request.bucket_tokens",
    "task": "laar.request.task",
    "body_bytes": "http.request.body.size",
    "endpoint": "laar.decision.endpoint",
    "model": "laar.decision.model",
    "candidates_total": "laar.decision.candidates",
    "tried_models": "laar.request.tried_models",
    "exhausted": "laar.decision.exhausted",
    "prefiller": "laar.decision.prefiller",
    "pulled_from": "laar.decision.pulled_from",
    "adapter": "laar.decision.adapter",
}
"""Attributes of a decision, by the fields of its record."""
_OF_END = {
    "status": "http.response.status_code",
    "cause": "laar.end.cause",
    "served": "laar.end.endpoint",
    "model": "gen_ai.response.model",
    "latency_s": "laar.end.latency_s",
    "ttft_s": "gen_ai.response.time_to_first_chunk",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}
"""Attributes of a request's end, by the fields of the record's `completion`."""

Metadata = Iterable[tuple[str, str]]

_W3C = TraceContextTextMapPropagator()
_HEADERS = frozenset({"traceparent", "tracestate"})
_MAX_CHARS = 1024
"""Maximum length of an attribute, since names sent by clients are otherwise unlimited."""


class Spans:
    """Creates spans for decisions whose trace is sampled; the SDK sends them and logs its errors.

    Args:
        url: URL of the collector; None to use the environment's.

    Raises:
        ValueError: the ``OTEL_*`` environment can't be used; importing this module may raise it.
    """

    def __init__(self, url: str | None) -> None:
        # Clients can send any number of invalid headers, and the SDK logs each of them.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        logging.getLogger("opentelemetry.exporter").setLevel(logging.WARNING)
        self._exporter: Any = OTLPSpanExporter(url)
        self._provider = TracerProvider(
            ParentBased(ALWAYS_OFF),
            resource(),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attribute_length=_MAX_CHARS),
        )
        self._tracer = self._provider.get_tracer("laar")

    def begin(self) -> None:
        """Start the sending thread.

        Raise `SettingError` if the ``OTEL_BSP_*`` environment can't be used.
        """
        sys.setswitchinterval(_SLICE_S)
        try:
            self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        except ValueError as fault:
            raise unusable_environment(fault) from None

    def end(self) -> None:
        """Send the unsent spans and end the thread; blocks."""
        self._provider.shutdown()

    async def run(self) -> None:
        """Wait until cancelled, then spend at most a second on sending the unsent spans."""
        try:
            await asyncio.Event().wait()
        finally:
            # Not in the event loop's thread pool, for which shutdown would wait.
            ending = threading.Thread(target=self.end, daemon=True)
            ending.start()
            last = time.monotonic() + LAST_S
            while ending.is_alive() and time.monotonic() < last:  # noqa: ASYNC110 - awaits a thread
                await asyncio.sleep(_POLL_S)
            if ending.is_alive():
                self._exporter.shutdown()

    def join(self, caller: Metadata, parent: str, state: str) -> Trace | None:
        """Start a decision's span; return its trace, or None if the decision belongs to none.

        Args:
            caller: metadata of the call. In it, a tracing proxy names its own span for the call,
                which is part of the client's trace, or marks the trace as not sampled.
            parent: ``traceparent`` of the client's request.
            state: ``tracestate`` of that request.
        """
        carrier = {name: str(value) for name, value in caller if name in _HEADERS}
        kind = SpanKind.SERVER
        if "traceparent" not in carrier:
            if not parent:
                return None
            carrier = {"traceparent": parent, "tracestate": state}
            kind = SpanKind.INTERNAL
        if carrier["traceparent"].endswith("-00"):
            return None  # not sampled; this saves the 20 us that the SDK takes to find out
        span = self._tracer.start_span(NAME, _W3C.extract(carrier), kind)
        if not span.is_recording():
            return None
        return Trace(trace_id=format_trace_id(span.get_span_context().trace_id), span=span)

    def settled(self, record: DecisionRecord) -> None:
        """End the span of a decision whose request has ended, if it has one."""
        trace = record.decision.request.trace
        if trace is not None:
            self._end(trace, attributes(shown(record)), round(record.time_s * 1e9))

    def refused(self, request: Request, error: RequestError) -> None:
        """End the span of a request without an endpoint, if it has one."""
        if request.trace is not None:
            request.trace.span.set_status(StatusCode.ERROR)
            values = {
                "gen_ai.request.model": request.model,
                "laar.request.id": request.id,
                "http.response.status_code": error.status,
                "error.type": error.reason,
            }
            self._end(request.trace, values)

    def _end(self, trace: Trace, values: Mapping[str, object], end_ns: int | None = None) -> None:
        span, trace.span = trace.span, None  # remembered decisions need not keep the span
        empty = (None, "", ())
        span.set_attributes({n: v for n, v in values.items() if v not in empty and v == v})
        span.end(end_ns if end_ns is None else max(end_ns, span.start_time))


def resource() -> Resource:
    """Return the resource that sends the spans, as named by the environment or by laar."""
    ours = {
        "service.name": "laar",
        "service.version": version("laar"),
        "service.instance.id": str(uuid.uuid4()),
    }
    return Resource(ours).merge(OTELResourceDetector().detect())


def attributes(of: Mapping[str, Any]) -> dict[str, object]:
    """Return a span's attributes from a record; the chosen candidate's are `laar.chosen.*`."""
    values = {said: of[name] for name, said in _ATTRIBUTES.items() if name in of}
    for name, value in of["candidates"][of["picked"]].items():
        if name not in ("endpoint", "model"):  # fields of the decision
            values[f"laar.chosen.{name}"] = value
    end = of.get("completion")
    if end is not None:
        values |= {said: end[name] for name, said in _OF_END.items()}
        values["http.response.status_code"] = end["status"] or None
    return values
