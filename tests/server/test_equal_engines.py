"""Equal engines behind a real picker and a real Envoy work equally, however they answer probes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import orjson
import pytest
from aiohttp import web

from laar.datalayer import probe
from laar.fleet.roundtrip import WINDOW
from support import eventually
from support.clients import CHAT, chat, post
from support.served import ServedEngine

pytestmark = [pytest.mark.envoy, pytest.mark.long]
EMBEDDINGS = "/v1/embeddings"
SHAPES = ["standalone", "gateway"]


class Late(ServedEngine):
    """An engine that answers prompts soon, and other pages after some delay.

    Args:
        first_s: delay of its first page of each kind.
        health_s: delay of each health page: SGLang generates a token.
        stall_s: draws the delay of any page that does no work: an event loop that is busy.
        works_s: draws the time for a prompt.
    """

    def __init__(self, first_s=0.0, health_s=0.0, stall_s=lambda: 0.0, works_s=lambda: 0.02):
        self.first_s, self.health_s = first_s, health_s
        self.stall_s, self.works_s = stall_s, works_s
        self.served, self.asked = 0, Counter()

    async def _handle(self, request):
        path = request.path
        if path in (CHAT, EMBEDDINGS):
            await request.read()
            self.served += not request.headers.get("user-agent", "").startswith("laar-")
            await asyncio.sleep(self.works_s())
            if path == CHAT:
                return web.json_response({"choices": [{"message": {"content": "ok"}}]})
            return web.json_response({"data": [{"embedding": [0.0] * 8, "index": 0}]})
        self.asked[path] += 1
        await asyncio.sleep(self.stall_s() + (self.first_s if self.asked[path] == 1 else 0.0))
        if path == "/health":
            await asyncio.sleep(self.health_s)
        if path == "/metrics":
            return web.Response(text="vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n")
        return web.json_response({"data": [{"id": "m"}]} if path == "/v1/models" else {})


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(probe, "SOON_S", 0.05)  # between the first samples of the distance


async def shares(gateway, http, shape, engines, *, clients, requests, path=CHAT, **routing):
    """Return how often each engine was chosen, over its fair share."""
    for engine in engines:
        await gateway.enter(engine)
    gateway.members(*((engine.address, "m") for engine in engines))
    readings = {"scrape_interval_s": 1.0, "probe_interval_s": 5.0}
    await gateway.picker(readings=readings, routing=routing)
    envoy = await gateway.envoy(shape, trust_gateway_headers=True)
    pages = (len(probe.PAGES) - 1) * probe.SAMPLES + WINDOW
    for engine in engines:
        await eventually(lambda of=engine.asked: sum(map(of.__getitem__, probe.PAGES)) >= pages)
    left = iter(range(requests))

    async def client():
        for n in left:
            text = f"{n} is the number"
            body = chat(text) if path == CHAT else orjson.dumps({"model": "m", "input": [text]})
            assert (await post(http, envoy, body, path)).status == 200

    await asyncio.gather(*(client() for _ in range(clients)))
    return [engine.served * len(engines) / requests for engine in engines]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("late_s", [0.0, 0.12])
async def test_three_equal_engines_share_the_work(gateway, http, figure, shape, late_s):
    engines = [Late(), Late(late_s), Late(late_s)]
    found = await shares(gateway, http, shape, engines, clients=4, requests=400)
    figure("least share of three equal engines, of fair", min(found), ".8")
    assert min(found) > 0.6, found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("clients", [1, 8])
async def test_two_equal_engines_share_the_work(gateway, http, figure, shape, clients):
    found = await shares(gateway, http, shape, [Late(), Late()], clients=clients, requests=160)
    figure(f"least share of two equal engines, {clients} clients, of fair", min(found), ".8")
    assert min(found) > 0.6, found


@pytest.mark.parametrize("shape", SHAPES)
async def test_sixteen_engines_share_embeddings(gateway, http, figure, shape):
    engines = [Late(works_s=lambda: 0.003) for _ in range(16)]
    found = await shares(gateway, http, shape, engines, clients=32, requests=800, path=EMBEDDINGS)
    figure("most of 16 equal engines, of fair", max(found), "1.2")
    figure("least of 16 equal engines, of fair", min(found), ".8")
    assert min(found) > 0.5, found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("both", [True, False])
async def test_an_engine_that_generates_for_its_health_page_works(
    gateway, http, figure, shape, both
):
    """As SGLang does: its health page takes a second, and its other pages milliseconds."""
    engines = [Late(health_s=1.0), Late(health_s=1.0 if both else 0.0)]
    found = await shares(gateway, http, shape, engines, clients=2, requests=100)
    figure("share of an engine that generates for its health page, of fair", found[0], ".8 to 1.2")
    assert 0.5 < found[0] < 1.5, found


def drawn(rng):
    """Return equal engines, each with a different reason to answer late."""
    mean_s = rng.choice((0.02, 0.06))
    stalls = [
        lambda: 0.0,
        lambda: rng.expovariate(1.0 / mean_s),
        lambda: rng.uniform(0.0, 2.0 * mean_s),
        lambda: 8.0 * mean_s * (rng.random() < 0.2),
    ]
    works = [
        lambda: 0.02,
        lambda: rng.uniform(0.01, 0.03),
        lambda: 0.02 * rng.lognormvariate(0.0, 0.5),
        lambda: 0.01 + rng.expovariate(100.0),
    ]
    work = rng.choice(works)
    return [
        Late(rng.choice((0.0, 0.3)), rng.choice((0.0, 1.0)), rng.choice(stalls), work)
        for _ in range(rng.randint(2, 6))
    ]


@pytest.mark.parametrize(("seed", "shape"), [*enumerate(2 * SHAPES)])
async def test_engines_that_are_late_for_any_reason_share_the_work(
    gateway, http, figure, shape, seed
):
    rng = random.Random(seed)
    engines = drawn(rng)
    clients = rng.choice((2, 2 * len(engines)))
    requests = 80 * len(engines)
    found = await shares(gateway, http, shape, engines, clients=clients, requests=requests)
    figure(f"least share of {len(engines)} engines late for some reason, of fair", min(found), ".8")
    assert min(found) > 0.5, found


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_far_engine_is_chosen_less_although_its_answers_jitter(
    gateway, http, figure, shape
):
    rng = random.Random(1)
    far = Late(stall_s=lambda: rng.gauss(0.1, 0.01), works_s=lambda: rng.gauss(0.12, 0.01))
    found = await shares(gateway, http, shape, [far, Late(), Late()], clients=3, requests=120)
    figure("share of an engine 100 ms away, of fair", found[0], "under .4")
    assert found[0] < 0.6, found
