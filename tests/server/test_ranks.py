"""Data-parallel ranks behind one address, with a real picker and a real Envoy."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict

import pytest
import yaml
from aiohttp import web
from test_blame import GOOD, SHAPES, chat, post

from laar.datalayer.scrape import Scraper
from laar.fleet.membership import EndpointSpec
from laar.server.fleet import FleetState
from laar.server.picker import Picker
from laar.settings import Settings
from support import eventually
from support.served import ServedEngine

pytestmark = pytest.mark.envoy


PAGES = {
    "vllm": (
        'vllm:num_requests_waiting{{engine="{0}",model_name="m"}} 0.0\n',
        'vllm:num_requests_running{{engine="{0}",model_name="m"}} 0.0\n',
        'vllm:kv_cache_usage_perc{{engine="{0}",model_name="m"}} 0.1\n',
    ),
    "sglang": (
        'sglang:num_queue_reqs{{dp_rank="{0}",tp_rank="{0}"}} 0.0\n',
        'sglang:num_running_reqs{{dp_rank="{0}",tp_rank="{0}"}} 0.0\n',
        'sglang:token_usage{{dp_rank="{0}",tp_rank="{0}"}} 0.1\n',
    ),
}


class RankedEngine(ServedEngine):
    """An engine with data-parallel ranks on one port; its metrics page has a line for each."""

    def __init__(self, ranks=2, *, kind="vllm", elsewhere=0, first=0):
        self.ranks = ranks
        self.first = first
        self.kind = kind
        self.elsewhere = elsewhere
        self.dead = False
        self.page = ""
        self.prompts = defaultdict(list)

    async def _handle(self, request):
        if request.path == "/metrics":
            return web.Response(text=self.page or self._page())
        if request.path == "/server_info":
            return web.json_response(
                {"dp_size": self.ranks + self.elsewhere, "internal_states": []}
            )
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
        ranks = range(self.first, self.first + self.ranks)
        return "".join(line.format(rank) for line in PAGES[self.kind] for rank in ranks)


def keys(runner):
    return [spec.key for spec in runner.picker.table.specs()]


def both_known(runner, engine):
    return keys(runner) == [f"{engine.address}#{rank}" for rank in range(engine.ranks)]


def one_endpoint(engine):
    return {"endpoints": [{"address": engine.address, "models": ["m"], "engine": engine.kind}]}


@pytest.mark.parametrize(("kind", "shape"), [*(("vllm", s) for s in SHAPES), ("sglang", SHAPES[0])])
async def test_a_conversation_stays_at_its_rank_and_both_are_used(gateway, http, kind, shape):
    engine = await gateway.enter(RankedEngine(kind=kind))
    gateway.endpoints_file.write_text(yaml.safe_dump(one_endpoint(engine)))
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
    # By chance about one of eight would stay at its rank; load moves some, as prompts are short.
    assert sum(len(ranks) == 1 for ranks in ranks_of.values()) >= 3
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


async def test_two_nodes_of_hybrid_data_parallelism_get_equal_shares(gateway, http):
    """Each node's page shows its own ranks of the whole; a request names them from 0."""
    nodes = [await gateway.enter(RankedEngine(4, first=first)) for first in (0, 4)]
    gateway.members(*((node.address, "m") for node in nodes))
    runner = await gateway.picker()
    envoy = await gateway.envoy()
    await eventually(lambda: len(keys(runner)) == 8, what="an endpoint for each rank")
    for start in range(0, 64, 8):
        each = (post(http, envoy, chat(f"{n} prompt")) for n in range(start, start + 8))
        assert [status for status, _ in await asyncio.gather(*each)] == [200] * 8
    for node in nodes:
        assert set(node.prompts) == {"0", "1", "2", "3"}
        assert 24 <= sum(map(len, node.prompts.values())) <= 40


async def test_an_sglang_engine_over_several_hosts_is_one_endpoint(gateway, http):
    engine = await gateway.enter(RankedEngine(kind="sglang", elsewhere=2))
    gateway.endpoints_file.write_text(yaml.safe_dump(one_endpoint(engine)))
    runner = await gateway.picker()
    envoy = await gateway.envoy()
    table = runner.picker.table
    await eventually(lambda: table.running[:1].tolist() == [0.0], what="a reading")
    assert [(await post(http, envoy, chat("a prompt")))[0] for _ in range(4)] == [200] * 4
    assert (keys(runner), set(engine.prompts)) == ([engine.address], {None})


async def test_an_endpoint_keeps_its_ranks_if_it_or_its_page_is_away_for_a_moment():
    picker = Picker(Settings.model_validate({"endpoints": [{"address": "a:1", "model": "m"}]}))
    fleet, table = FleetState(picker), picker.table
    async with RankedEngine() as engine:
        spec = EndpointSpec(address=engine.address, models=("m",))
        fleet.replace("test", [spec])
        visits = Scraper(
            lambda: [spec for spec in table.specs() if not spec.rank],
            fleet,
            clock=picker.clock,
            rng=random.Random(1),
            interval_s=0.02,
        )
        scraping = asyncio.create_task(visits.run())
        try:
            for _ in range(2):
                await eventually(lambda: len(table) == 2, what="both ranks")
                fleet.replace("test", [])  # such as a pod that is unready for a moment
                fleet.replace("test", [spec])
            await eventually(lambda: len(table) == 2, what="both ranks again")
            known = table.specs()
            engine.page = "<html>Please wait</html>"  # from a proxy
            await eventually(lambda: bool(picker.problems), what="the page is a problem")
            assert table.specs() == known
        finally:
            scraping.cancel()
            await asyncio.wait([scraping])
