"""An OpenTelemetry collector in the test's own process, for OTLP/HTTP with protobuf."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from support.served import ServedEngine


class Collector(ServedEngine):
    """Keeps received spans; answers `status` after the `refusals`, or nothing while it `hangs`."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.status = 200
        self.refusals: list[int] = []
        self.hangs = False
        self.requests = 0

    def url(self, signal: str) -> str:
        """Return the URL of a signal."""
        return f"http://127.0.0.1:{self.port}/v1/{signal}"

    def of(self, service: str) -> list[Any]:
        """Return the spans that a service sent."""
        found = zip(self.spans, self.resources, strict=True)
        return [span for span, resource in found if resource["service.name"] == service]

    def _route(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/{signal}", self._handle)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests += 1
        self.headers.append(request.headers)
        while self.hangs:  # noqa: ASYNC110 - tests set it as they go
            await asyncio.sleep(0.01)
        if self.refusals:
            return web.Response(status=self.refusals.pop(0), headers={"retry-after": "0"})
        if self.status // 100 == 2:
            assert request.headers["content-type"] == "application/x-protobuf"
            self._traces(body)
        return web.Response(status=self.status)

    def _traces(self, body: bytes) -> None:
        request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        for of in request.resource_spans:
            for scope in of.scope_spans:
                self.spans.extend(scope.spans)
                self.resources += [attributes(of.resource)] * len(scope.spans)


def attributes(of: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource, as plain values."""
    return {pair.key: _plain(pair.value) for pair in of.attributes}


def _plain(value: Any) -> Any:
    if value.WhichOneof("value") == "array_value":
        return [_plain(one) for one in value.array_value.values]
    return getattr(value, value.WhichOneof("value"))
