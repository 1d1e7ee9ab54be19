"""Decisions as spans of their clients' traces: what OpenTelemetry is sent.

A span lasts from the request for a decision to the decision, waiting in the queue included; it is
sent when its request has ended, so that it can hold the outcome of the decision. It is made from
the record that `/decisions` shows, so both agree, and holds nothing of a prompt.

Names by OpenTelemetry's conventions where there are any (``gen_ai.*``, ``http.*``, ``error.type``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from laar.core.request import Request, Trace
from laar.errors import RequestError
from laar.explain import fields
from laar.explain.decision_record import DecisionRecord
from laar.explain.record import shown

LAST_S = 1.0
"""At the end, for spans that wait still; a collector that is down must not hold up a picker that
leaves."""

_POLL_S = 0.01

NAME = "laar.decision"

Metadata = Iterable[tuple[str, str]]

_W3C = TraceContextTextMapPropagator()
_HEADERS = frozenset({"traceparent", "tracestate"})
_MAX_CHARS = 1024
"""Characters of one attribute: names that clients send have no limit of their own."""


class Spans:
    """Makes spans of the decisions whose trace is sampled; the SDK sends them, and logs its faults.

    Args:
        url: URL of the collector; None for the environment's.
        version: laar's own, for the resource.

    Raises:
        ValueError: the environment gives the SDK numbers that can't be.
    """

    def __init__(self, url: str | None, version: str) -> None:
        # A client can send any number of wrong headers, each a line of the SDK's.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        logging.getLogger("opentelemetry.exporter").setLevel(logging.WARNING)
        self._exporter: Any = OTLPSpanExporter(url)
        self._provider = TracerProvider(
            ParentBased(ALWAYS_OFF),
            resource(version),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attribute_length=_MAX_CHARS),
        )
        self._tracer = self._provider.get_tracer("laar")

    def begin(self) -> None:
        """Start the thread that sends.

        Raises:
            ValueError: the environment gives it numbers that can't be.
        """
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))

    def end(self) -> None:
        """Send what waits, and end the thread; blocks."""
        self._provider.shutdown()

    async def run(self) -> None:
        """Wait until cancelled, then a second at most for spans that wait."""
        try:
            await asyncio.Event().wait()
        finally:
            # Not in the loop's own threads: a picker that ends waits for these.
            ending = threading.Thread(target=self.end, daemon=True)
            ending.start()
            last = time.monotonic() + LAST_S
            while ending.is_alive() and time.monotonic() < last:  # noqa: ASYNC110 - a thread's end
                await asyncio.sleep(_POLL_S)
            if ending.is_alive():
                self._exporter.shutdown()

    def join(self, caller: Metadata, parent: str, state: str) -> Trace | None:
        """Return the trace of a decision that is asked for now; None if it is in none.

        Args:
            caller: metadata of the call. A proxy that traces names its own span of the call there,
                which is in the client's trace, or knows that it is not wanted.
            parent: ``traceparent`` of the client's request.
            state: its ``tracestate``.
        """
        carrier = {name: str(value) for name, value in caller if name in _HEADERS}
        kind = SpanKind.SERVER
        if "traceparent" not in carrier:
            if not parent:
                return None
            carrier = {"traceparent": parent, "tracestate": state}
            kind = SpanKind.INTERNAL
        if carrier["traceparent"].endswith("-00"):
            return None  # unsampled, without the 20 us that the SDK takes to find out
        span = self._tracer.start_span(NAME, _W3C.extract(carrier), kind)
        if not span.is_recording():
            return None
        return Trace(trace_id=format_trace_id(span.get_span_context().trace_id), span=span)

    def settled(self, record: DecisionRecord) -> None:
        """End the span of a decision whose request has ended, if it has one."""
        if record.trace is not None:
            values = attributes(shown(record))
            self._end(record.trace, values, round(record.time_s * 1e9))

    def refused(self, request: Request, error: RequestError) -> None:
        """End the span of a request that got no endpoint, if it has one."""
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
        span, trace.span = trace.span, None  # a remembered decision need not keep it
        span.set_attributes(_non_empty(values))
        span.end(end_ns if end_ns is None else max(end_ns, span.start_time))


def resource(version: str) -> Resource:
    """Return the sender's resource, named by the environment or laar."""
    ours = {
        "service.name": "laar",
        "service.version": version,
        "service.instance.id": str(uuid.uuid4()),
    }
    return Resource(ours).merge(OTELResourceDetector().detect())


def attributes(of: Mapping[str, Any]) -> dict[str, object]:
    """Return a span's attributes from a record; those of the chosen candidate: `laar.chosen.*`."""
    values = _renamed(of, fields.ATTRIBUTES)
    for name, value in of["candidates"][of["picked"]].items():
        if name in fields.OF_CHOSEN:
            values[f"laar.chosen.{name}"] = value
    end = of.get("completion")
    if end is not None:
        values |= _renamed(end, fields.END_ATTRIBUTES)
        values["http.response.status_code"] = end["status"] or None
    return values


def _renamed(of: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, object]:
    return {names[name]: value for name, value in of.items() if name in names}


def _non_empty(values: Mapping[str, object]) -> dict[str, Any]:
    """Drop values without content: None, empty, NaN."""
    return {
        name: value
        for name, value in values.items()
        if not (value is None or value == "" or value == () or value != value)
    }
