"""Adapters and other model names that engines list, with a real picker and a real Envoy."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from io import BytesIO

import orjson
import pytest
from aiohttp import web

from support import eventually
from support.served import ServedEngine

pytestmark = pytest.mark.envoy


class Engine(ServedEngine):
    """Serves a model under several names, and adapters of the model, as vLLM does.

    `refused` maps a name to the status of its answers; `event` means a 200 with an error.
    Requests with a `wrong` field get 400.
    Requests with the API key `bad` get 401, as from an engine that checks keys.
    """

    def __init__(self, *names, adapters=()):
        self.names, self.adapters = names, adapters
        self.refused, self.lazy = {}, None
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
        if request.headers.get("authorization") == "Bearer bad":
            status = 401
        if status == "event":
            error = orjson.dumps({"error": {"message": "EngineDeadError", "code": 500}})
            if body.get("stream"):
                return web.Response(
                    body=b"data: " + error + b"\n\n", content_type="text/event-stream"
                )
            return web.Response(body=error, content_type="application/json")
        if self.lazy and name.startswith(self.lazy):
            self.adapters = {*self.adapters, name}
        if name not in (*self.names, *self.adapters):
            status = 404
        if status != 200:
            return web.json_response({"error": {"message": "no"}}, status=status)
        await asyncio.sleep(0.02)  # slower than a refusal
        message = {"role": "assistant", "content": self.names[0]}
        return web.json_response(
            {"model": name, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        )


async def ask(http, envoy, model, *, key="", **fields):
    """Return the status of an answer, and the model that gave it; 0 for an error in a 200."""
    messages = [{"role": "user", "content": "hello"}]
    body = orjson.dumps({"model": model, "messages": messages, **fields})
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    async with http.post(
        envoy.url() + "/v1/chat/completions", data=BytesIO(body), headers=headers
    ) as answer:
        said = await answer.json()
    if answer.status == 200 and "error" in said:
        return 0, None
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
async def test_no_adapter_answers_for_another_model_with_the_same_name(gateway, http, shape):
    one = await gateway.enter(Engine("one", adapters=("two", "both", "sql")))
    two = await gateway.enter(Engine("two", "both"))
    await fleet_of(gateway, one, two, routing={"policy": "least-loaded"})
    envoy = await gateway.envoy(shape)
    for name, model in (("sql", "one"), ("one", "one"), ("two", "two"), ("both", "two")):
        answers = await asyncio.gather(*(ask(http, envoy, name) for _ in range(8)))
        assert answers == [(200, model)] * 8, name


async def burst(http, envoy, *models, **fields):
    """Send one request per model, all concurrently; count the statuses."""
    answers = await asyncio.gather(*(ask(http, envoy, model, **fields) for model in models))
    return Counter(status for status, _ in answers)


REFUSALS = [*(("lora", status) for status in (400, 401, 404, 503, "event")), ("other", 400)]


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_requests_for_a_model_that_one_endpoint_refuses_go_elsewhere(gateway, http, shape):
    """The endpoint keeps serving its other models, and is probed until it serves this one again."""
    fleets = []
    for n, (refused, status) in enumerate(REFUSALS):
        served = {name: f"{name}-{n}" for name in ("m", "other", "lora")}
        m, other, lora = served.values()
        engines = [await gateway.enter(Engine(m, other, adapters=(lora,))) for _ in range(3)]
        fleets.append((engines, [m, other, lora], served[refused], status))
    every = [engine for engines, *_ in fleets for engine in engines]
    runner = await fleet_of(gateway, *every, routing={"policy": "least-loaded"})
    envoy = await gateway.envoy(shape)
    ask_for = partial(burst, http, envoy)
    await asyncio.gather(*(_goes_elsewhere(runner, ask_for, *fleet) for fleet in fleets))


async def _goes_elsewhere(runner, ask_for, engines, names, refused, status):
    bad = engines[0]
    bad.refused[refused] = status
    problems, source = runner.picker.problems, f"endpoint {bad.address} {refused}"
    seen = Counter()

    async def is_out():
        seen.update(await ask_for(*[refused] * 4, *names))
        return source in problems

    await eventually(is_out, what=f"the problem of {status}")
    assert "no requests for this model" in problems[source]
    assert seen[0 if status == "event" else status] <= 40

    before = bad.asked.copy()

    async def serves_others():
        assert await ask_for(*names * 4) == {200: 12}
        return bad.asked > before

    await eventually(serves_others, what="its other models")
    assert bad.asked[refused] == before[refused]
    bad.refused.clear()

    async def is_back():
        assert await ask_for(*[refused] * 3) == {200: 3}
        return bad.asked[refused] > before[refused]

    await eventually(is_back, what=f"requests for it again after {status}")
    assert source not in problems


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_names_that_engines_load_when_asked_are_reached(gateway, http, figure, shape):
    lazy, other = await gateway.enter(Engine("m")), await gateway.enter(Engine("m"))
    lazy.lazy = "org/"
    entries = [
        {"address": lazy.address, "model": "m", "labels": {"laar.dev/on-demand": "org/*, own"}},
        {"address": other.address, "model": "m"},
    ]
    gateway.endpoints_file.write_bytes(orjson.dumps({"endpoints": entries}))  # JSON is YAML
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    statuses = [(await ask(http, envoy, f"org/{n % 3}"))[0] for n in range(12)]
    figure("lost of 12 for adapters that are loaded when asked for", 12 - statuses.count(200), "0")
    assert set(statuses) == {200}
    assert set(other.asked) <= {"m"}
    assert (await ask(http, envoy, "else/1"))[0] == 404
    assert (await ask(http, envoy, "m"))[0] == 200
