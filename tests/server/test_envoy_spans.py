"""With the guide's configuration Envoy's span of a request names its decision."""

import re
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from test_gateway import chat

from support import eventually
from support.clients import post
from support.served import ServedEngine

TRACE = "0af7651916cd43dd8448eb211c80319c"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "traces.md"


class Collector(ServedEngine):
    """Keeps what Envoy exports; texts in it are as they are."""

    def __init__(self):
        self.received = b""

    def _route(self, router):
        router.add_post("/v1/traces", self._handle)

    async def _handle(self, request):
        self.received += await request.read()
        return web.Response()


@pytest.mark.envoy
@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_envoys_span_names_the_decision_in_its_clients_trace(gateway, http, shape):
    async with Collector() as collector:
        tracing, cluster = (
            yaml.safe_load(text.replace("4318", str(collector.port)))
            for text in re.findall(r"```yml title=\"\w+\"\n(.*?)```", GUIDE.read_text(), re.DOTALL)
        )

        def trace_too(bootstrap):
            listener = bootstrap["static_resources"]["listeners"][0]
            manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
            manager.update(tracing)
            bootstrap["static_resources"]["clusters"].append(cluster)
            flush = {"tracing.opentelemetry.flush_interval_ms": 100}
            bootstrap["layered_runtime"]["layers"].append({"name": "flush", "static_layer": flush})

        upstream = await gateway.upstream()
        gateway.members((upstream.address, "m"))
        await gateway.picker()
        envoy = await gateway.envoy(shape, trace_too)
        answer = await post(http, envoy, chat(), traceparent=f"00-{TRACE}-b7ad6b7169203331-01")
        wanted = answer.headers["x-laar-decision-id"].encode(), upstream.address.encode()
        await eventually(lambda: all(each in collector.received for each in wanted), what="a span")
        assert bytes.fromhex(TRACE) in collector.received
