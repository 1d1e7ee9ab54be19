"""WebSockets go where their model and thread are, cost nothing while idle, or are refused well."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import orjson
import pytest

from support import eventually
from support.clients import chat, post

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "gateway", "full-duplex"]
TURN = {"model": "m", "request_kind": "prewarm"}
MODELS = [  # where clients name the model of a WebSocket
    ("/v1/realtime?model=m", {}),
    ("/v1/responses?model=m", {}),
    ("/openai/realtime?api-version=1&deployment=m", {}),
    ("/v1/responses", {"x-codex-turn-metadata": orjson.dumps(TURN).decode()}),
    ("/v1/responses", {"x-another-context": '{"model": "m", "nested": {"model": "other"}}'}),
    ("/v1/responses", {"x-openai-model": "m"}),
]
THREADS = [  # and the thread
    {"thread-id": "t", "session-id": "s"},
    {"x-session-id": "t"},
    {"x-codex-turn-metadata": orjson.dumps({**TURN, "thread_id": "t"}).decode()},
]


async def fleet(gateway, shape, *names):
    upstreams = [await gateway.upstream() for _ in names]
    members = zip((each.address for each in upstreams), names, strict=True)
    gateway.members(*members)
    await gateway.picker()
    return await gateway.envoy(shape), {each.address: each for each in upstreams}


async def opened(http, url, headers):
    """Open a WebSocket and use it."""
    socket = await http.ws_connect(url, headers=headers)
    await say_hello(socket)
    return socket


async def say_hello(socket):
    await socket.send_str("hello")
    assert await socket.receive_str(timeout=10) == "hello"


def hosts(upstreams):
    """Return the addresses that opened a WebSocket, once for each."""
    return [
        address
        for address, upstream in upstreams.items()
        for request in upstream.requests
        if "upgrade" in request.headers
    ]


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_websocket_goes_to_an_endpoint_with_the_model_that_it_names(gateway, http, shape):
    envoy, upstreams = await fleet(gateway, shape, "other", "m", "another")
    _, right, _ = upstreams
    for path, headers in MODELS:
        await (await opened(http, envoy.url() + path, headers)).close()
    assert hosts(upstreams) == [right] * len(MODELS)


@pytest.mark.parametrize("shape", SHAPES)
async def test_reconnects_of_a_thread_stay_at_one_endpoint(gateway, http, shape):
    envoy, upstreams = await fleet(gateway, shape, *"mmmmmm")
    url = f"{envoy.url()}/v1/responses?model=m"
    for thread in THREADS:
        for upstream in upstreams.values():
            upstream.requests.clear()
        for _ in range(4):
            await (await opened(http, url, thread)).close()
        assert len(hosts(upstreams)) == 4
        assert len(set(hosts(upstreams))) == 1, thread
    others = (opened(http, url, {"thread-id": str(number)}) for number in range(24))
    await asyncio.gather(*(socket.close() for socket in await asyncio.gather(*others)))
    assert len(set(hosts(upstreams))) > 3


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_open_websocket_is_no_load(gateway, http, shape):
    envoy, upstreams = await fleet(gateway, shape, "m", "m")
    table = gateway.runner.picker.table
    async with AsyncExitStack() as stack:
        for _ in range(3):
            socket = await opened(http, f"{envoy.url()}/v1/responses", {"thread-id": "t"})
            await stack.enter_async_context(socket)
        await eventually(lambda: not table.in_flight.any(), what="sockets without weight")
        assert len(set(hosts(upstreams))) == 1
        await say_hello(socket)
    await eventually(lambda: not table.in_flight.any(), what="no request in flight")
    assert (await post(http, envoy, chat())).status == 200


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_websocket_without_a_model_or_an_engine_for_it_is_refused_with_426(
    gateway, http, shape
):
    envoy, upstreams = await fleet(gateway, shape, "m", "other")
    for path in ("/v1/responses", "/v1/realtime"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(envoy.url() + path)
        assert (refused.value.status, refused.value.headers["x-laar-reason"]) == (426, "no-model")
    assert not hosts(upstreams)
    for status, told in ((403, 426), (404, 426), (405, 426), (401, 401), (429, 429)):
        for upstream in upstreams.values():
            upstream.socket_status = status
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(f"{envoy.url()}/v1/responses?model=m")
        assert refused.value.status == told, status
    assert (await post(http, envoy, chat())).status == 200
