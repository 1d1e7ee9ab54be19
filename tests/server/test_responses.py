"""Conversations stored by engines, with a real Envoy and simulated endpoints."""

import orjson
import pytest

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
