"""The caches of engines that publish events are tracked exactly, through a real Envoy."""

import itertools

import orjson
import pytest
import yaml

pytest.importorskip("zmq")

from laar.core.request import Api, Request
from laar.protocol.openai import read_body
from laar_lab.sim.endpoint import KvEventSettings
from support import eventually

pytestmark = pytest.mark.envoy


def chat(text):
    return orjson.dumps(
        {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    )


def story(number, words=1500):
    return " ".join(f"w{number}-{at}" for at in range(words))


async def post(http, url, body, **headers):
    headers = {"content-type": "application/json", **headers}
    async with http.post(f"{url}/v1/chat/completions", data=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["usage"], answer.headers


async def followed_engine(gateway, http):
    """Return the URLs of Envoy and of an engine that publishes events, and the believed share."""
    events = KvEventSettings(endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*")
    engine = await gateway.simulated(time_scale=0.001, num_blocks=250, kv_events=events)
    direct = engine.url
    async with http.get(f"{direct}/kv_event_sources") as answer:
        (source,) = await answer.json()
    entry = {
        "address": engine.address,
        "model": "m",
        "labels": {
            "laar.dev/kv-events": source["endpoint"],
            "laar.dev/kv-events-replay": source["replay_endpoint"],
        },
    }
    gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": [entry]}))
    runner = await gateway.picker()
    url = (await gateway.envoy()).url()

    def believed(body):
        read = read_body(Api.CHAT, body)
        request = Request(id="r", api=Api.CHAT, model="m", spans=read.spans, chars=read.chars)
        decision = runner.picker.director.choose(request, 0.0)
        return 1.0 - decision.uncached_tokens / decision.tokens

    fresh = itertools.count(100)

    async def followed():
        """Ask until events arrive: those published before the picker listens are lost."""
        await post(http, url, chat(story(next(fresh), 30)))
        return runner.picker.prefixes.blocks_held.blocks

    await eventually(followed, what="the first event")
    return url, direct, believed


async def test_a_cache_is_estimated_from_its_events(gateway, http):
    url, direct, believed = await followed_engine(gateway, http)
    bodies = [chat(story(number)) for number in range(2)]
    for body in bodies:
        await post(http, url, body)
    assert all(believed(body) > 0.9 for body in bodies)

    before = believed(bodies[0])
    await post(http, direct, chat(story(10, 700)))  # bypasses the picker, and evicts a part
    await eventually(lambda: believed(bodies[0]) < before, what="the eviction to be noticed")
    share = believed(bodies[0])
    found, _ = await post(http, direct, bodies[0])
    assert 0.1 < share < 0.9
    assert found["prompt_tokens_details"]["cached_tokens"] == pytest.approx(
        share * found["prompt_tokens"], abs=32
    )
