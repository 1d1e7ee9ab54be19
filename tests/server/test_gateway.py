"""The picker with a real Envoy, driven by real clients."""

import asyncio
import contextlib

import aiohttp
import orjson
import pytest

from support import Answer, eventually
from support.clients import post

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "gateway", "full-duplex"]


def chat(model="auto", text="hello", **fields):
    return orjson.dumps({"messages": [{"role": "user", "content": text}], "model": model, **fields})


@pytest.mark.parametrize("shape", SHAPES[:2])  # full duplex drops all lengths
@pytest.mark.parametrize("size", [1, 70_000])
async def test_a_head_request_tells_the_length_that_a_get_would_have(gateway, http, shape, size):
    endpoint = await gateway.upstream()
    endpoint.script(Answer(body=b"x" * size))
    gateway.members((endpoint.address, "m"))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    async with http.head(envoy.url() + "/v1/files/a/content") as answer:
        assert answer.headers["content-length"] == str(size)
        assert "transfer-encoding" not in answer.headers


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_picked_endpoint_is_reached_with_only_the_model_changed(gateway, http, shape):
    a, b = await gateway.upstream(), await gateway.upstream()
    gateway.members((a.address, "small"), (b.address, "large"))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    body = (
        b' {"messages" : [{"role":"user","content":"\\u00e9 \xc3\xa9"}],'
        b' "seed":12345678901234567890,\n"model" : "auto" }'
    )
    seen = set()
    for _ in range(4):
        answer = await post(http, envoy, body, **{"x-laar-policy": "round-robin"})
        assert answer.status == 200
        model = answer.headers["x-laar-model"]
        endpoint = {"small": a, "large": b}[model]
        assert answer.headers["x-laar-endpoint"] == endpoint.address
        assert answer.headers["x-upstream"] == endpoint.address
        assert endpoint.asked[-1].body == body.replace(b'"auto"', b'"%s"' % model.encode())
        seen.add(model)
    assert seen == {"small", "large"}


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_openai_package_streams_chunk_by_chunk(gateway, shape):
    import openai  # this import takes a second, so only here

    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker(bodies={"sample_answers": 1.0})
    envoy = await gateway.envoy(shape)
    seen_by_client = asyncio.Event()

    async def chunks():
        piece = (
            b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m",'
            b'"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n'
        )
        yield piece % 1
        # The second chunk is sent only after the first has arrived.
        await asyncio.wait_for(seen_by_client.wait(), 10)
        yield piece % 2
        yield b"data: [DONE]\n\n"

    upstream.script(Answer.sse(chunks()))
    async with openai.AsyncOpenAI(base_url=f"{envoy.url()}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "count"}], stream=True
        )
        contents = []
        async for chunk in stream:
            contents.append((chunk.choices[0].delta.content, chunk.model))
            seen_by_client.set()
    # Where answers pass through the picker, it restores the client's name for the model.
    name = "m" if shape == "standalone" else "auto"
    assert contents == [("1", name), ("2", name)]
    table = gateway.runner.picker.table
    await eventually(lambda: not table.in_flight.any(), what="the request's release")


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_stream_of_a_get_is_in_flight_beside_a_websocket(gateway, http, shape):
    """Envoy may end the picker's stream early if a request has no body."""
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker(bodies={"sample_answers": 0.0})
    envoy = await gateway.envoy(shape)
    seen_by_client = asyncio.Event()

    def in_flight():
        return int(gateway.runner.picker.table.in_flight.sum())

    async def chunks():
        yield b"data: 1\n\n"
        await asyncio.wait_for(seen_by_client.wait(), 10)

    async with http.ws_connect(f"{envoy.url()}/v1/realtime?model=m") as websocket:
        upstream.script(Answer.sse(chunks()))
        async with http.get(f"{envoy.url()}/v1/events") as answer:
            await answer.content.readany()
            for _ in range(3):  # by then Envoy has ended what it meant to end
                await websocket.send_str("hello")
                assert await websocket.receive_str() == "hello"
            assert in_flight() == 1
            seen_by_client.set()
            await answer.read()
        await eventually(lambda: in_flight() == 0, what="the stream's end")


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_wrong_answer_is_retried_on_another_model_until_all_are_tried(gateway, http, shape):
    upstreams = [await gateway.upstream() for _ in range(3)]
    gateway.members(*((u.address, f"m{i}") for i, u in enumerate(upstreams)))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    headers, models = {}, []
    for attempt in range(3):
        answer = await post(http, envoy, chat(), **headers)
        models.append(answer.headers["x-laar-model"])
        assert answer.headers["x-laar-tried-models"] == ",".join(models)
        assert ("x-laar-exhausted" in answer.headers) is (attempt == 2)
        headers = {"x-laar-tried-models": answer.headers["x-laar-tried-models"]}
    assert sorted(models) == ["m0", "m1", "m2"]
    assert all("x-laar-tried-models" not in r.headers for u in upstreams for r in u.asked)


async def test_an_envoy_under_load_drains_and_answers_all_forwarded_requests(gateway, http):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker()
    envoy = await gateway.envoy()
    upstream.chat_answer = Answer(wait_s=0.3)
    answers = []

    async def client():
        with contextlib.suppress(aiohttp.ClientError):  # Envoy no longer listens
            while True:
                answers.append(await post(http, envoy, chat("m")))

    clients = [asyncio.create_task(client()) for _ in range(20)]
    await eventually(lambda: len(answers) > 20, what="some answers")
    await asyncio.wait_for(envoy.drain(600), 20)
    await envoy.stop()
    await asyncio.gather(*clients)
    assert [answer.status for answer in answers] == [200] * len(upstream.asked)
