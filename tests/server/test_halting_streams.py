"""Streams that stall after their first token, while comments keep their connections open."""

from __future__ import annotations

import asyncio

import aiohttp
import orjson
import pytest
from aiohttp import web

from support.served import ServedEngine
from support.transports import on_both

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

PATIENCE_S = 15.0  # longer than the test, so that no client's timeout reveals the fault
WHOLE = {"model": "m", "choices": [{"message": {"content": "one two three"}}]}


def event(text, **fields):
    choice = {"index": 0, "delta": {"content": text}, **fields}
    return b"data: %s\n\n" % orjson.dumps({"model": "m", "choices": [choice]})


class Engine(ServedEngine):
    """Streams three tokens; after it dies, it sends comments instead of the last two."""

    def __init__(self):
        self.dead = False

    async def _handle(self, request):
        if request.method != "POST":
            return web.Response(status=405)
        if not (await request.json()).get("stream"):
            await asyncio.sleep(0.03)
            return web.json_response(WHOLE)
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(event("one"))
        while self.dead:
            await asyncio.sleep(0.3)
            await answer.write(b": ping\n\n")
        await asyncio.sleep(0.03)
        await answer.write(event("two"))
        await answer.write(event("three", finish_reason="stop") + b"data: [DONE]\n\n")
        return answer


async def is_answered(http, envoy, number):
    body = {"model": "m", "stream": number % 3 > 0, "max_tokens": 5}
    body["messages"] = [{"role": "user", "content": f"{number} a question"}]
    try:
        async with asyncio.timeout(PATIENCE_S):
            async with http.post(envoy.url() + "/v1/chat/completions", json=body) as answer:
                return b"three" in await answer.read()
    except (TimeoutError, aiohttp.ClientError):
        return False


@on_both
@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_comments_do_not_keep_a_stalled_endpoint_in_use(gateway, http, shape):
    engines = [await gateway.enter(Engine()) for _ in range(3)]
    gateway.members(*((engine.address, "m") for engine in engines))
    await gateway.picker()
    envoy = await gateway.envoy(shape)

    tasks = []

    async def ask(count):
        for number in range(count):
            tasks.append(asyncio.create_task(is_answered(http, envoy, number)))
            await asyncio.sleep(0.05)

    await ask(60)
    assert all(await asyncio.gather(*tasks))
    engines[0].dead = True
    await ask(100)
    tasks = []
    await ask(120)
    answered = await asyncio.gather(*tasks)
    assert answered.count(False) <= 3
