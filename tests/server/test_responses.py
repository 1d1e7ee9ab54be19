"""Conversations stored by engines, with a real Envoy and simulated endpoints."""

import gzip
import zlib

import orjson
import pytest

from support.sockets import SocketEngine

pytestmark = pytest.mark.envoy


async def asked(http, url, text, **fields):
    """Post a response; return its id and the endpoint it came from."""
    body = orjson.dumps({"model": "m", "input": text, "max_output_tokens": 4, **fields})
    headers = {"content-type": "application/json", "x-laar-policy": "round-robin"}
    async with http.post(f"{url}/v1/responses", data=body, headers=headers) as answer:
        raw = await answer.read()
        assert answer.status == 200, raw
        where = answer.headers["x-sim-endpoint"]
    if not fields.get("stream"):
        return orjson.loads(raw)["id"], where
    events = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    return orjson.loads(events[-1])["response"]["id"], where


async def three_engines(gateway, shape, **settings):
    """Start three endpoints behind a picker and an Envoy; return Envoy's URL."""
    started = [await gateway.simulated(**settings) for _ in range(3)]
    gateway.members(*((endpoint.address, "m") for endpoint in started))
    await gateway.picker()
    return (await gateway.envoy(shape)).url()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_conversations_continue_at_the_endpoint_that_stores_them(
    gateway, http, shape, stream
):
    url = await three_engines(gateway, shape, time_scale=0.001)
    begun = [await asked(http, url, f"story {n}", stream=stream) for n in range(6)]
    assert len({where for _, where in begun}) > 1
    for name, where in begun:
        async with http.get(f"{url}/v1/responses/{name}") as answer:
            assert answer.status == 200
            assert answer.headers["x-sim-endpoint"] == where
        for _ in range(3):
            name, again = await asked(http, url, "go on", previous_response_id=name, stream=stream)
            assert again == where
    async with http.get(f"{url}/v1/responses/resp_never") as answer:
        assert answer.status == 404
        assert answer.headers["x-laar-reason"] == "unknown-response"


@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_an_answer_is_fetched_while_it_streams(gateway, http, shape):
    url = await three_engines(gateway, shape)
    body = {"model": "m", "input": "a story", "max_output_tokens": 5000, "stream": True}
    async with http.post(f"{url}/v1/responses", json=body) as answer:
        begun = await answer.content.readuntil(b"\n\n")
        name = orjson.loads(begun.partition(b"data: ")[2])["response"]["id"]
        async with http.get(f"{url}/v1/responses/{name}") as fetched:
            assert fetched.status == 200, await fetched.read()
            assert fetched.headers["x-sim-endpoint"] == answer.headers["x-sim-endpoint"]
        assert not answer.content.at_eof()


def compressing(compress, *, stream):
    """Return the behavior of an engine that compresses, whatever it was asked for."""

    async def behave(arrived):
        await arrived.read()
        port = arrived.engine.address.rpartition(":")[2]
        answer = {"object": "response", "id": f"resp-{port}-{len(arrived.engine.arrived)}"}
        said = {**answer, "output": [{"content": [{"type": "output_text", "text": "a story"}]}]}
        raw = orjson.dumps(said)
        if stream:
            ends = b'data: {"type":"response.completed","response":' + raw + b"}\n\n"
            raw = b'data: {"type":"response.created","response":' + raw + b"}\n\n" + ends
        kind = b"text/event-stream" if stream else b"application/json"
        lines = [b"HTTP/1.1 200 OK", b"content-type: " + kind, b"connection: close"]
        if compress is not bytes:
            lines.append(b"content-encoding: x")  # what it says is not read
        arrived.writer.write(b"\r\n".join([*lines, b"", compress(raw)]))
        await arrived.writer.drain()

    return behave


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_conversations_continue_at_engines_that_compress_unasked(
    gateway, http, figure, shape, stream
):
    lost = asked_with = 0
    engines = [await gateway.enter(SocketEngine()) for _ in range(3)]
    gateway.members(*((engine.address, "m") for engine in engines))
    await gateway.picker()
    url = (await gateway.envoy(shape)).url()
    for compress in (bytes, gzip.compress, zlib.compress):
        for engine in engines:
            engine.behavior = compressing(compress, stream=stream)
            engine.arrived.clear()
        for _engine in engines:  # a story at each of them
            headers = {"x-laar-policy": "round-robin", "accept-encoding": "br, gzip"}
            body = {"model": "m", "input": "a story", "stream": stream}
            async with http.post(
                f"{url}/v1/responses", json=body, headers=headers, auto_decompress=False
            ) as answer:
                assert answer.status == 200
                await answer.read()
        for engine in engines:
            port = engine.address.rpartition(":")[2]
            body = {"model": "m", "input": "go on", "previous_response_id": f"resp-{port}-1"}
            async with http.post(f"{url}/v1/responses", json=body, auto_decompress=False) as answer:
                lost += answer.status != 200
                await answer.read()
            lost += b"resp-" + port.encode() not in engine.arrived[-1].body
            asked_with += b"accept-encoding: identity" in engine.arrived[-1].head
    figure("turns lost where engines compress unasked", lost, "0")
    assert (lost, asked_with) == (0, 9)
