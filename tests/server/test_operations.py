"""Health, admin port, draining, and errors at startup."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from laar.server.runner import Runner
from laar.wire import ext_proc_pb2 as pb
from support import eventually

NAMES = (
    "",
    "readiness",
    "inference-extension",
    "envoy.service.ext_proc.v3.ExternalProcessor",
)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(address, name):
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status


async def test_every_health_name_except_liveness_follows_the_fleet(gateway):
    gateway.members()
    await gateway.picker()
    address = gateway.settings.listen.health
    assert [await health(address, name) for name in NAMES] == [NOT_SERVING] * 4
    assert await health(address, "liveness") == SERVING
    gateway.members(("127.0.0.1:1", "m"))

    async def ready():
        return await health(address, "") == SERVING

    await eventually(ready, what="readiness")
    assert [await health(address, name) for name in NAMES] == [SERVING] * 4
    assert await health(gateway.settings.listen.ext_proc, "") == SERVING


@pytest.fixture
def draining(monkeypatch):
    """Let drains last until the test sets this event."""
    over = asyncio.Event()
    monkeypatch.setattr(Runner, "_left_alone", lambda _self: over.wait())
    return over


async def test_an_open_channel_shows_the_health_of_fleet_and_drain(gateway, draining):
    gateway.members()
    await gateway.picker(shutdown={"drain_s": 60.0, "grace_s": 1.0})
    listen = gateway.settings.listen
    async with (
        grpc.aio.insecure_channel(listen.ext_proc) as serving,
        grpc.aio.insecure_channel(listen.health) as probed,
    ):
        stubs = [health_pb2_grpc.HealthStub(channel) for channel in (serving, probed)]
        readiness = health_pb2.HealthCheckRequest(service="readiness")

        async def told():
            return {(await stub.Check(readiness)).status for stub in stubs}

        async def is_ready():
            return await told() == {SERVING}

        async def is_not_ready():
            return await told() == {NOT_SERVING}

        assert await is_not_ready()
        gateway.members(("127.0.0.1:1", "m"))
        await eventually(is_ready, what="readiness")
        stopping = asyncio.create_task(gateway.stop_picker())
        await eventually(is_not_ready, what="the drain")
        for stub in stubs:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Watch(readiness, timeout=10).read()
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        draining.set()
    await stopping


@pytest.mark.parametrize("port", ["ext_proc", "health"])
async def test_unknown_services_and_malformed_health_requests_are_errors(gateway, port):
    gateway.members()
    await gateway.picker()
    async with grpc.aio.insecure_channel(getattr(gateway.settings.listen, port)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        unknown = health_pb2.HealthCheckRequest(service="nothing")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Check(unknown, timeout=10)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff", timeout=10)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_admin_port_serves_metrics_health_and_settings(gateway, http):
    gateway.members(("127.0.0.1:1", "m"))
    await gateway.picker()

    async def get(path):
        async with http.get(gateway.url("admin", path)) as answer:
            return answer.status, await answer.text()

    assert (await get("/healthz"))[0] == 200
    assert (await get("/readyz"))[0] == 200
    status, page = await get("/metrics")
    assert status == 200
    assert 'laar_endpoint_in_flight{endpoint="127.0.0.1:1",model="m"} 0.0' in page
    assert '"policy": "laar"' in (await get("/config"))[1]


async def test_an_unready_picker_says_why(gateway, http, draining):
    def says(reason):
        async def matches():
            try:
                async with http.get(gateway.url("admin", "/readyz")) as answer:
                    return (answer.status, await answer.text()) == (503, f"not ready: {reason}\n")
            except OSError:  # the port is not open yet
                return False

        return eventually(matches, what=reason)

    async def silent(reader, writer):
        await reader.read()  # a store that never answers: the start waits for it
        writer.close()

    gateway.members(("127.0.0.1:1", "m"))
    async with await asyncio.start_server(silent, "127.0.0.1") as store:
        port = store.sockets[0].getsockname()[1]
        sharing = {"share": {"url": f"redis://127.0.0.1:{port}/0"}, "shutdown": {"drain_s": 60.0}}
        starting = asyncio.create_task(gateway.picker(**sharing))
        await eventually(lambda: gateway.runner is not None, what="the picker")
        await says("laar is starting")
        await starting
        gateway.members()
        await says("no endpoint is known")
        gateway.runner.stop()
        await says("laar is draining")
        draining.set()


class Exchange:
    """One ext_proc stream, driven by hand."""

    def __init__(self, channel):
        process = channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        self.call = process()

    async def headers(self, *, end=True, subset=None, **headers):
        message = pb.ProcessingRequest(request_headers=pb.HttpHeaders(end_of_stream=end))
        message.protocol_config.request_body_mode = 4  # ProcessingMode.FULL_DUPLEX_STREAMED
        for name, value in {":path": "/v1/files/7", ":method": "GET", **headers}.items():
            message.request_headers.headers.headers.append(
                pb.HeaderValue(key=name, raw_value=value.encode())
            )
        if subset is not None:
            hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            _fill(hint.fields["x-gateway-destination-endpoint-subset"], subset)
        await self.call.write(message)

    async def answer(self):
        return await asyncio.wait_for(self.call.read(), 10)


def _fill(value, content):
    match content:
        case str():
            value.string_value = content.encode()
        case bool():
            value.bool_value = content
        case int():
            value.number_value = content
        case list():
            value.list_value.SetInParent()
            for item in content:
                _fill(value.list_value.values.add(), item)
        case dict():
            for name, item in content.items():
                _fill(value.struct_value.fields[name], item)


def destination(answer):
    fields = answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    in_metadata = fields["x-gateway-destination-endpoint"].string_value.decode()
    headers = answer.request_headers.response.header_mutation.set_headers
    in_headers = {h.header.key: h.header.raw_value.decode() for h in headers}
    assert in_headers["x-gateway-destination-endpoint"] == in_metadata
    return in_metadata


async def test_draining_reports_not_ready_first_and_lets_open_streams_finish(gateway, draining):
    gateway.members(("10.9.0.1:80", "m"))
    runner = await gateway.picker(shutdown={"drain_s": 60.0, "grace_s": 60.0})
    listen = gateway.settings.listen
    async with grpc.aio.insecure_channel(listen.ext_proc) as channel:
        old = Exchange(channel)
        await old.headers(end=False)
        stopping = asyncio.create_task(gateway.stop_picker())

        async def not_ready():
            return await health(listen.health, "readiness") == NOT_SERVING

        await eventually(not_ready, what="readiness to end")
        assert await health(listen.health, "liveness") == SERVING
        new = Exchange(channel)  # served although the picker drains
        await new.headers()
        assert destination(await new.answer())
        await new.call.done_writing()
        draining.set()
        body = pb.HttpBody(body=b'{"model":"m","messages":[{"content":"x"}]}', end_of_stream=True)
        await old.call.write(pb.ProcessingRequest(request_body=body))
        assert (await old.answer()).WhichOneof("response") in (
            "request_headers",
            "immediate_response",
        )
        await old.call.done_writing()
        await stopping
    assert not runner.picker.table.in_flight.any()
