"""Engines that hold one of their models at a time, behind a real picker and a real Envoy."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import orjson
import pytest
import yaml
from aiohttp import web

from support.clients import CHAT, post
from support.served import ServedEngine

pytestmark = [pytest.mark.envoy, pytest.mark.long]
MODELS, WEIGHTS, LOAD_S = ("a", "b", "c"), (5, 3, 2), 0.8


class Swapping(ServedEngine):
    """An engine that answers one request after the other, and loads the model of each."""

    def __init__(self):
        self.loaded, self.loads, self.turn = "", 0, asyncio.Lock()

    async def _handle(self, request):
        if request.path != CHAT or request.method != "POST":
            return web.Response(status=405 if request.path == CHAT else 404)
        model = orjson.loads(await request.read())["model"]
        async with self.turn:
            if model != self.loaded:
                self.loaded, self.loads = model, self.loads + 1
                await asyncio.sleep(LOAD_S)
            await asyncio.sleep(0.02)
        answer = {"choices": [{"message": {"content": f"an answer of {model}"}}]}
        return web.json_response({**answer, "usage": {"prompt_tokens": 9, "completion_tokens": 9}})


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_models_are_rarely_swapped(gateway, http, figure, shape):
    engines = [await gateway.enter(Swapping()) for _ in range(2)]
    own = [
        {"address": engine.address, "models": [*MODELS], "metrics_url": ""} for engine in engines
    ]
    gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": own}))
    await gateway.picker(routing={"allow_policy_header": True})
    envoy = await gateway.envoy(shape, trust_gateway_headers=True)
    loads, took_s = Counter(), Counter()
    for policy in ("least-loaded", "laar"):
        rng = random.Random(7)
        for number in range(40):
            messages = [{"role": "user", "content": f"{number} is the number of {policy}"}]
            body = {"model": rng.choices(MODELS, WEIGHTS)[0], "messages": messages}
            before, began = sum(engine.loads for engine in engines), time.perf_counter()
            answer = await post(http, envoy, orjson.dumps(body), **{"x-laar-policy": policy})
            assert answer.status == 200
            took_s[policy] += time.perf_counter() - began
            loads[policy] += sum(engine.loads for engine in engines) - before
    swaps, took = (of["laar"] / of["least-loaded"] for of in (loads, took_s))
    figure("3 models at 2 engines that hold one: swaps beside least-loaded", swaps, ".5")
    figure("3 models at 2 engines that hold one: time beside least-loaded", took, ".8")
    assert swaps < 0.75
