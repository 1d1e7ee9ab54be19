"""Sleeping engines, with a real picker and a real Envoy."""

from __future__ import annotations

import asyncio
import math

import pytest
from aiohttp import web
from test_blame import GOOD, chat

from support import eventually
from support.clients import post
from support.served import ServedEngine

pytestmark = pytest.mark.envoy


class Sleeper(ServedEngine):
    """An engine that holds requests while it sleeps, like vLLM."""

    def __init__(self, state):
        self.state, self.awake, self.asked = state, asyncio.Event(), 0
        self.shown_awake = None  # what its page shows, if not the truth

    async def _handle(self, request):
        if request.path == "/is_sleeping":
            return web.json_response({"is_sleeping": not self.awake.is_set()})
        if request.path == "/metrics":
            awake = self.awake.is_set() if self.shown_awake is None else self.shown_awake
            states = {"weights_offloaded": 0, "discard_all": 0, "awake": int(awake)}
            if not awake:
                states[self.state] = 1
            line = 'vllm:engine_sleep_state{{engine="0",sleep_state="{}"}} {}.0\n'
            lines = [line.format(*item) for item in states.items()]
            return web.Response(text="vllm:num_requests_running 0.0\n" + "".join(lines))
        if request.method != "POST" or request.path == "/tokenize":
            return web.Response(text="{}")
        await request.read()
        self.asked += 1
        await self.awake.wait()
        return web.Response(body=GOOD, content_type="application/json")


async def fleet_of(gateway, engine):
    """Start a picker for the engine, and wait until it has read whether it sleeps."""
    gateway.members((engine.address, "m"))
    table = (await gateway.picker()).picker.table
    is_awake = engine.awake.is_set()
    await eventually(lambda: not math.isnan(table.read_at[0]) and (not table.asleep[0]) == is_awake)


@pytest.mark.parametrize("state", ["weights_offloaded", "discard_all"])
async def test_an_engine_that_only_its_page_calls_asleep_gets_requests(gateway, http, state):
    engine = await gateway.enter(Sleeper(state))
    engine.awake.set()
    engine.shown_awake = False
    await fleet_of(gateway, engine)
    envoy = await gateway.envoy()
    ended = [await post(http, envoy, chat(f"prompt {n}")) for n in range(3)]
    assert [answer.status for answer in ended] == [200] * 3


@pytest.mark.parametrize("state", ["weights_offloaded", "discard_all"])
async def test_a_client_gets_the_error_that_all_engines_sleep(gateway, http, state):
    engine = await gateway.enter(Sleeper(state))
    await fleet_of(gateway, engine)
    envoy = await gateway.envoy()
    status, _, said = await post(http, envoy, chat("a prompt"))
    assert (status, engine.asked) == (503, 0)
    assert b"asleep and must be woken" in said
    engine.awake.set()  # somebody woke it

    async def answers():
        return (await post(http, envoy, chat("a prompt"))).status == 200

    await eventually(answers, what="an answer")
