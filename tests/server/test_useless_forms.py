"""Useless endpoints behind a real picker and a real Envoy get no more than the bound."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import islice

import orjson
import pytest
from aiohttp import web
from bench.bench_useless import ENDPOINTS, WORST, Question, draw, questions, useful

from support.clients import CHAT, post
from support.served import ServedEngine

pytestmark = [pytest.mark.envoy, pytest.mark.long]

FORMS, REQUESTS, SECOND = 8, 150, 10
"""Forms, each with a model and endpoints of its own; requests to each model, and how many of them
stand for a second of the benchmark."""


class Engine(ServedEngine):
    """An endpoint of one model, which answers by a behavior."""

    def __init__(self, model, behave, served):
        self._model, self._behave, self._served = model, behave, served
        self._rng = random.Random(model)

    async def _handle(self, request):
        if request.path != CHAT:
            is_list = request.path == "/v1/models"
            return web.json_response({"data": [{"id": self._model}] if is_list else []})
        body = orjson.loads(await request.read())
        probes = request.headers.get("user-agent", "").startswith("laar-")
        if not probes:
            self._served.append(self)
        question = Question(
            text=body["messages"][-1]["content"], stream=bool(body.get("stream")), probe=probes
        )
        answer = self._behave(question, self._rng)
        await asyncio.sleep(answer.seconds)
        own = b'"model":"%s"' % self._model.encode()
        whole = b"".join(answer.parts).replace(b'"model":"m"', own)
        headers = {"content-type": answer.kind} if answer.kind else {}
        if answer.encoding:
            headers["content-encoding"] = answer.encoding
        return web.Response(status=answer.status, body=whole, headers=headers)


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_no_drawn_form_gets_more_than_the_bound(gateway, http, figure, shape):
    rng, fleets, members = random.Random(shape), [], []
    while len(fleets) < FORMS:
        form, served = draw(rng, api="chat"), []
        if form.like or len(form.places) > 2:
            continue
        behave = form.behavior(lambda served=served: len(served) / SECOND)
        model = f"m{len(fleets)}"
        engines = [
            await gateway.enter(Engine(model, behave if at in form.places else useful, served))
            for at in range(ENDPOINTS)
        ]
        members += [(engine.address, model) for engine in engines]
        fleets.append((form, model, engines, served))
    gateway.members(*members)
    await gateway.picker()
    envoy = await gateway.envoy(shape, trust_gateway_headers=True)

    async def client(model, left):
        for question in left:
            body = orjson.dumps({**orjson.loads(question.body), "model": model})
            await post(http, envoy, body, **{"x-gateway-inference-fairness-id": model})

    async def ask(model):
        left = islice(questions(random.Random(model)), REQUESTS)
        await asyncio.gather(*(client(model, left) for _ in range(3)))

    await asyncio.gather(*(ask(model) for _, model, _, _ in fleets))
    shares = {}
    for form, _, engines, served in fleets:
        late = Counter(served[REQUESTS - 50 :])
        got = sum(late[engines[at]] for at in form.places)
        shares[got / late.total() / len(form.places)] = str(form)
    figure(f"worst share of {FORMS} drawn useless forms", max(shares), str(WORST))
    figure("their mean", sum(shares) / len(shares), ".1")
    assert max(shares) <= WORST + 0.05, shares[max(shares)]
