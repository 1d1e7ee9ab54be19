"""Engines that never reuse a prefix, behind a real picker and a real Envoy."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiohttp import web

from support.clients import CHAT, chat, post
from support.served import ServedEngine

pytestmark = pytest.mark.envoy


class Forgetful(ServedEngine):
    """An engine that prefills each prompt anew, two at a time; it says so, counts it, or is silent.

    Args:
        reports: whether its answers' usage says so.
        counts: whether its metrics page does.
    """

    def __init__(self, reports=False, counts=False):
        self.reports, self.counts = reports, counts
        self.served, self.room = 0, asyncio.Semaphore(2)

    async def _handle(self, request):
        if request.path == "/metrics":
            lines = "vllm:num_requests_running 0\n"
            if self.counts:
                lines += "vllm:prefix_cache_hits_total 0\n"
                lines += f"vllm:prefix_cache_queries_total {self.served * 5600}\n"
            return web.Response(text=lines)
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
    engines = [await gateway.enter(Forgetful(reports, not reports)) for _ in range(4)]
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


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_silent_engines_answer_one_prompt_of_many_clients_as_least_loaded_does(
    gateway, http, figure, shape
):
    engines = [await gateway.enter(Forgetful()) for _ in range(4)]
    gateway.members(*((engine.address, "m") for engine in engines))
    await gateway.picker()
    envoy = await gateway.envoy(shape, trust_gateway_headers=True)
    took_s = {"": 0.0, "least-loaded": 0.0}
    for n, policy in enumerate((*took_s, *took_s)):  # by turns, as the machine may be busy
        body = chat(f"prompt {n} " * 1400)
        headers = {"x-laar-policy": policy} if policy else {}
        left, begun_at = iter(range(80)), time.monotonic()

        async def client(body=body, headers=headers, left=left):
            for _ in left:
                assert (await post(http, envoy, body, **headers)).status == 200

        await asyncio.gather(*(client() for _ in range(16)))
        took_s[policy] += time.monotonic() - begun_at
    answers = took_s["least-loaded"] / took_s[""]
    figure(
        "answers of silent engines that never reuse a prefix, over least-loaded's", answers, ".9"
    )
    assert answers > 0.8
