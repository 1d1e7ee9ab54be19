"""Adapters and other names of engines that list them, behind a real picker and a real Envoy."""

from __future__ import annotations

import asyncio
from collections import Counter
from io import BytesIO

import orjson
import pytest
from aiohttp import web

from support import eventually
from support.served import ServedEngine

pytestmark = pytest.mark.envoy


class Engine(ServedEngine):
    """Serves a model under several names, and adapters of it, as vLLM does.

    Names in `refused` get that status, and requests with `wrong` get 400.
    """

    def __init__(self, *names, adapters=()):
        self.names, self.adapters = names, adapters
        self.refused = {}
        self.asked, self.probed = Counter(), Counter()

    async def _handle(self, request):
        if request.path == "/v1/models":
            root = {"object": "model", "root": f"org/{self.names[0]}"}
            models = [{"id": name, **root} for name in self.names]
            adapters = [{"id": name, "parent": self.names[0]} for name in self.adapters]
            return web.json_response({"object": "list", "data": models + adapters})
        if request.path != "/v1/chat/completions" or request.method != "POST":
            return web.Response(status=405 if request.path.startswith("/v1/chat") else 200)
        body = orjson.loads(await request.read())
        name = body["model"]
        probes = request.headers.get("user-agent") == "laar-trial"
        (self.probed if probes else self.asked)[name] += 1
        status = self.refused.get(name, 400 if body.get("wrong") else 200)
        if name not in (*self.names, *self.adapters):
            status = 404
        if status != 200:
            return web.json_response({"error": {"message": "no"}}, status=status)
        await asyncio.sleep(0.02)  # a refusal takes less
        message = {"role": "assistant", "content": self.names[0]}
        return web.json_response(
            {"model": name, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        )


async def ask(http, envoy, model, **fields):
    """Return the status of an answer, and the model that gave it."""
    messages = [{"role": "user", "content": "hello"}]
    body = orjson.dumps({"model": model, "messages": messages, **fields})
    headers = {"content-type": "application/json"}
    async with http.post(
        envoy.url() + "/v1/chat/completions", data=BytesIO(body), headers=headers
    ) as answer:
        said = await answer.json()
    return answer.status, said["choices"][0]["message"]["content"] if "choices" in said else None


async def fleet_of(gateway, *engines, **sections):
    """Start a picker that has read the lists of the engines."""
    gateway.members(*((engine.address, engine.names[0]) for engine in engines))
    runner = await gateway.picker(**sections)
    table = runner.picker.table
    await eventually(
        lambda: all(
            {*engine.names} <= {*spec.models} and len(spec.models) > 1
            for engine, spec in zip(engines, table.specs(), strict=True)
        ),
        what="all lists",
    )
    return runner


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_no_adapter_answers_for_another_model_of_the_same_name(gateway, http, shape):
    one = await gateway.enter(Engine("one", adapters=("two", "both", "sql")))
    two = await gateway.enter(Engine("two", "both"))
    await fleet_of(gateway, one, two, routing={"policy": "least-loaded"})
    envoy = await gateway.envoy(shape)
    for name, model in (("sql", "one"), ("one", "one"), ("two", "two"), ("both", "two")):
        answers = await asyncio.gather(*(ask(http, envoy, name) for _ in range(8)))
        assert answers == [(200, model)] * 8, name
