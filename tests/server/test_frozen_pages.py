"""Engines whose metrics pages show load that has gone, behind a real picker and a real Envoy."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from support import eventually
from support.clients import CHAT, chat, post
from support.served import ServedEngine

pytestmark = pytest.mark.envoy

PAGES = {
    "cache": "vllm:kv_cache_usage_perc 0.99\n",
    "waiting": "vllm:num_requests_waiting 200\nvllm:num_requests_running 0\n",
    "running": "vllm:num_requests_running 300\nvllm:num_requests_waiting 0\n",
}
_EACH = 20
"""Requests of each client: on a slow machine, many more take longer than a test may."""


class Frozen(ServedEngine):
    """An engine that answers; the gauges on its page never change, but a counter may."""

    def __init__(self, page, counts=False):
        self.page, self.counts, self.served = page, counts, 0

    async def _handle(self, request):
        if request.path == "/metrics":
            if not self.page:
                return web.Response(status=404)
            count = f"vllm:prompt_tokens_total {self.served * 9}\n" if self.counts else ""
            return web.Response(text=self.page + count)
        if request.path in (CHAT, "/generate"):
            await request.read()
            await asyncio.sleep(0.02)
            self.served += 1
        return web.json_response({"choices": [{"message": {"content": "ok"}}]})


@pytest.mark.parametrize(("page", "counts"), [("cache", False), ("running", True)])
async def test_a_lone_engine_under_flow_control_answers_all(gateway, http, figure, page, counts):
    engine = await gateway.enter(Frozen(PAGES[page], counts))
    gateway.members((engine.address, "m"))
    runner = await gateway.picker(flow={"enabled": True})
    await eventually(lambda: bool(runner.picker.table.read_at[0] > 0.0), what="a reading")
    envoy = await gateway.envoy()
    ended = [await post(http, envoy, chat(f"prompt {n}")) for n in range(20)]
    lost = sum(answer.status != 200 for answer in ended)
    figure("frozen page under flow control: lost of 20", lost, "0")
    assert not lost
    assert "nothing moves" in runner.picker.problems[f"load {engine.address}"]


@pytest.mark.parametrize(
    ("page", "counts", "path"),
    [("cache", True, CHAT), ("waiting", False, CHAT), ("running", True, "/generate")],
)
async def test_one_of_two_engines_gets_its_share(gateway, http, figure, page, counts, path):
    frozen = await gateway.enter(Frozen(PAGES[page], counts))
    other = await gateway.enter(Frozen("vllm:num_requests_running 0\n", counts))
    gateway.members((frozen.address, "m"), (other.address, "m"))
    runner = await gateway.picker()
    await eventually(lambda: any(runner.picker.table.ignored(0)), what="readings")
    envoy = await gateway.envoy()

    async def client(name):
        for n in range(_EACH):
            assert (await post(http, envoy, chat(f"{name} {n}"), path)).status == 200

    for shown in (frozen.page, ""):  # then its page is gone
        frozen.page, frozen.served = shown, 0
        await asyncio.gather(*map(client, range(12)))
        share = frozen.served / (12 * _EACH)
        figure(
            f"share beside its sibling, page {'frozen' if shown else 'gone'}", share, ".45 to .55"
        )
        assert share > 0.25  # without a correction none
