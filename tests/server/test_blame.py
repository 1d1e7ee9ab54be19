"""Failures caused by the request, and refusals under load, with a real picker and Envoy."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from io import BytesIO

import aiohttp
import orjson
import pytest
from aiohttp import web

from support import eventually
from support.grids import crossed
from support.served import ServedEngine

pytestmark = pytest.mark.envoy

TENANT = "x-gateway-inference-fairness-id"
SHAPES = ["standalone", "gateway"]
BUSY = b'{"error": {"message": "The engine is currently busy.", "type": "Service Unavailable"}}'
GOOD = orjson.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
        "model": "m",
    }
)


class Engine(ServedEngine):
    """Fails on prompts with `poison`; like vLLM, refuses requests beyond `most` in flight."""

    def __init__(self, how="500", most=10**6, took_s=0.03):
        self.how, self.most, self.took_s = how, most, took_s
        self.in_flight = self.refused = self.pages = 0
        self.dead = False
        self.refuses = 0
        self.asked = Counter()

    async def _handle(self, request):
        if request.path == "/metrics":
            self.pages += 1
            return web.Response(text=self._page())
        if request.method != "POST":
            return web.Response(text="{}")
        body = await request.read()
        kind = "poison" if b"poison" in body else "good"
        if request.headers.get("user-agent") == "laar-trial":
            kind = "question"
        self.asked[kind] += 1
        if self.dead == "reset":
            request.transport.abort()
        if self.dead:
            return web.Response(status=500, text="dead")
        if self.refuses and b"refused" in body:
            return web.json_response({"error": {"message": "no"}}, status=self.refuses)
        if kind == "poison":
            if self.how == "reset":
                request.transport.abort()
            return web.Response(status=500 if self.how == "reset" else int(self.how), text="broken")
        if self.in_flight >= self.most:
            self.refused += 1
            return web.Response(status=503, body=BUSY)
        self.in_flight += 1
        try:
            await asyncio.sleep(self.took_s)
        finally:
            self.in_flight -= 1
        return web.Response(body=GOOD, content_type="application/json")

    def _page(self):
        return (
            f"vllm:num_requests_waiting 0.0\nvllm:num_requests_running {self.in_flight}\n"
            f"vllm:prompt_tokens_total {9 * self.asked.total()}\n"
            'vllm:admission_rejections_total{engine="0",reason="max_num_queued_reqs"} '
            f"{self.refused}.0\n"
        )


def chat(text, **fields):
    text += " and some more text, so that the prompt is longer than a block of the index" * 3
    return orjson.dumps(
        {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": text}], **fields}
    )


async def post(http, envoy, body, **headers):
    headers = {"content-type": "application/json", **headers}
    start = time.monotonic()
    try:
        async with http.post(
            envoy.url() + "/v1/chat/completions", data=BytesIO(body), headers=headers
        ) as answer:
            await answer.read()
            return answer.status, time.monotonic() - start
    except aiohttp.ClientError:
        return 0, time.monotonic() - start


async def apart(count, every_s, one):
    """Start `one(n)` about every `every_s` seconds; return the results.

    At most eight run at a time: on a busy machine, more would meet an engine before it is excluded.
    """
    room = asyncio.Semaphore(8)

    async def start(n):
        async with room:
            return await one(n)

    tasks = []
    for n in range(count):
        await asyncio.sleep(every_s)
        tasks.append(asyncio.create_task(start(n)))
    return await asyncio.gather(*tasks)


@pytest.mark.parametrize(("shape", "how"), crossed(SHAPES, ["500", "reset"]))
async def test_requests_that_break_every_engine_are_blamed_instead_of_the_engines(
    gateway, http, shape, how
):
    engines = [await gateway.enter(Engine(how)) for _ in range(4)]
    gateway.members(*((engine.address, "m") for engine in engines))
    runner = await gateway.picker()
    envoy = await gateway.envoy(shape, trust_gateway_headers=True)

    async def one(n):
        text = f"{next(sent)} {n}"
        if n % 2:
            return "poison", await post(http, envoy, chat(f"{text} poison"), **{TENANT: "bad"})
        return "good", await post(http, envoy, chat(text), **{TENANT: "good"})

    sent = itertools.count()
    await apart(40, 0.02, one)  # the first may cost an engine half a second
    known = runner.picker.health.records.endpoints
    before = {slot: endpoint.breaker.openings for slot, endpoint in known.items()}
    for engine in engines:
        engine.asked.clear()
    engines[0].dead = True
    ended = await apart(80, 0.02, one)
    assert Counter(status for kind, (status, _) in ended if kind == "good") == {200: 40}
    assert sum(engine.asked["poison"] for engine in engines) <= 40 + 16
    assert engines[0].asked["good"] <= 4
    health, dead = runner.picker.health, runner.picker.table.slot(engines[0].address)
    await eventually(
        lambda: health.records.endpoints[dead].breaker.is_out, what="an answer to its probe"
    )
    for slot, endpoint in health.records.endpoints.items():
        assert slot == dead or endpoint.breaker.openings == before[slot]
    for engine in engines:
        engine.dead = True
    fails = asyncio.create_task(apart(300, 0.02, one))
    await eventually(
        lambda: all(e.breaker.is_out for _, e in health.records.endpoints.items()),
        what="all endpoints to fail",
    )
    fails.cancel()


@pytest.mark.parametrize(
    ("shape", "how", "status"),
    crossed(SHAPES, [*(("500", s) for s in (400, 401, 403, 404, 413, 422, 429)), ("reset", 400)]),
)
async def test_refusals_of_one_client_leave_the_engine_to_others(
    gateway, http, figure, shape, how, status
):
    """The only other engine is broken: who is merely doubted must stay the last resort."""
    good, broken = [await gateway.enter(Engine(how="reset")) for _ in range(2)]
    broken.dead = how
    good.refuses = status
    gateway.members(*((engine.address, "m") for engine in (good, broken)))
    await gateway.picker()
    envoy = await gateway.envoy(shape, trust_gateway_headers=True)

    async def one(n):
        if n % 2:
            return "refused", await post(http, envoy, chat(f"{n} refused"), **{TENANT: "bad"})
        return "good", await post(http, envoy, chat(f"{n}"), **{TENANT: "good"})

    ended = await apart(40, 0.02, one)
    statuses = Counter(status for kind, (status, _) in ended if kind == "good")
    figure("lost of 20 beside another client's refusals", 20 - statuses[200], "0")
    assert statuses == {200: 20}
