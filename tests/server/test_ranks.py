"""Data-parallel ranks behind one address, behind a real picker and a real Envoy."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import pytest
from aiohttp import web
from test_blame import GOOD, SHAPES, chat, post

from support import eventually
from support.served import ServedEngine

pytestmark = pytest.mark.envoy


class RankedEngine(ServedEngine):
    """A vLLM with data-parallel ranks: a metrics page with a line for each, one port."""

    def __init__(self, ranks=2):
        self.ranks = ranks
        self.dead = False
        self.prompts = defaultdict(list)

    async def _handle(self, request):
        if request.path == "/metrics":
            return web.Response(text=self._page())
        if request.method != "POST" or request.path == "/tokenize":
            return web.Response(text="{}")
        body = await request.read()
        if request.headers.get("user-agent") != "laar-trial":
            self.prompts[request.headers.get("x-data-parallel-rank")].append(body)
        if self.dead:
            return web.Response(status=500, text="dead")
        await asyncio.sleep(0.01)
        return web.Response(body=GOOD, content_type="application/json")

    def _page(self):
        return "".join(
            f'{name}{{engine="{rank}",model_name="m"}} {value}\n'
            for name, value in (
                ("vllm:num_requests_waiting", 0.0),
                ("vllm:num_requests_running", 0.0),
                ("vllm:kv_cache_usage_perc", 0.1),
            )
            for rank in range(self.ranks)
        )


def keys(runner):
    return [spec.key for spec in runner.picker.table.specs()]


def both_known(runner, engine):
    return keys(runner) == [f"{engine.address}#{rank}" for rank in range(engine.ranks)]


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_conversation_stays_at_its_rank_and_both_are_used(gateway, http, shape):
    engine = await gateway.enter(RankedEngine())
    gateway.members((engine.address, "m"))
    runner = await gateway.picker()
    envoy = await gateway.envoy(shape)
    await eventually(lambda: both_known(runner, engine), what="an endpoint for each rank")
    talks = [f"talk {n} about something of its own, at some length " * 8 for n in range(8)]
    for turn in range(4):
        talks = [f"{talk} turn {turn}" for talk in talks]
        ended = await asyncio.gather(
            *(post(http, envoy, chat(t), **{"x-data-parallel-rank": "7"}) for t in talks)
        )
        assert Counter(status for status, _ in ended) == {200: len(talks)}
    assert set(engine.prompts) == {"0", "1"}
    ranks_of = defaultdict(set)
    for rank, prompts in engine.prompts.items():
        for prompt in prompts:
            ranks_of[prompt.partition(b"talk ")[2][:1]].add(rank)
    # By chance it would be one of the eight.
    assert sum(len(ranks) == 1 for ranks in ranks_of.values()) >= 5
    assert len(engine.prompts["0"]) + len(engine.prompts["1"]) == 32


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_retry_goes_to_the_same_rank_elsewhere_and_loses_nothing(gateway, http, shape):
    dead, other = await gateway.enter(RankedEngine()), await gateway.enter(RankedEngine(3))
    gateway.members((dead.address, "m"), (other.address, "m"))
    runner = await gateway.picker()
    envoy = await gateway.envoy(shape)
    await eventually(lambda: len(keys(runner)) == 5, what="an endpoint for each rank")
    dead.dead = True
    ended = [await post(http, envoy, chat(f"prompt {n} ")) for n in range(20)]
    assert Counter(status for status, _ in ended) == {200: 20}
    assert sum(map(len, other.prompts.values())) == 20
    assert set(other.prompts) <= {"0", "1", "2"}
    table = runner.picker.table
    await eventually(lambda: not table.in_flight.any(), what="every request settled")


async def test_an_engine_that_comes_back_without_ranks_is_one_endpoint(gateway, http):
    engine = await gateway.enter(RankedEngine())
    gateway.members((engine.address, "m"))
    runner = await gateway.picker()
    envoy = await gateway.envoy()
    await eventually(lambda: both_known(runner, engine), what="an endpoint for each rank")
    engine.ranks = 1
    await eventually(lambda: keys(runner) == [engine.address], what="one endpoint")
    status, _ = await post(http, envoy, chat("a prompt"))
    assert status == 200
    assert list(engine.prompts) == [None]
