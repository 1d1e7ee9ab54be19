"""Engines that never reuse a prefix, behind a real picker and a real Envoy."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from support.clients import CHAT, chat, post
from support.served import ServedEngine

pytestmark = pytest.mark.envoy


class Forgetful(ServedEngine):
    """An engine that prefills each prompt anew, two at a time, and says so or counts it."""

    def __init__(self, reports):
        self.reports, self.served, self.room = reports, 0, asyncio.Semaphore(2)

    async def _handle(self, request):
        if request.path == "/metrics":
            lines = "vllm:num_requests_running 0\nvllm:prefix_cache_hits_total 0\n"
            return web.Response(
                text=f"{lines}vllm:prefix_cache_queries_total {self.served * 5600}\n"
            )
        usage = {"prompt_tokens": 5600, "completion_tokens": 1}
        if self.reports:
            usage["prompt_tokens_details"] = {"cached_tokens": 0}
        if request.path == CHAT:
            await request.read()
            self.served += 1
            async with self.room:
                await asyncio.sleep(0.1)
        return web.json_response({"choices": [{"message": {"content": "ok"}}], "usage": usage})


@pytest.mark.parametrize("reports", [True, False])
async def test_requests_with_one_prompt_are_spread(gateway, http, figure, reports):
    engines = [await gateway.enter(Forgetful(reports)) for _ in range(4)]
    gateway.members(*((engine.address, "m") for engine in engines))
    await gateway.picker()
    envoy = await gateway.envoy()
    body = chat("one long prompt " * 1400)

    async def client(number):
        await asyncio.sleep(0.2 * number)
        for _ in range(20):
            assert (await post(http, envoy, body)).status == 200

    await asyncio.gather(*map(client, range(8)))
    served = [engine.served for engine in engines]
    figure("fewest of 160 requests with one prompt at one of four engines", min(served), "over 16")
    assert min(served) > 16, served
