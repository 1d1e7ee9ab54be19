"""Sleeping engines that laar wakes, with a real picker and a real Envoy."""

from __future__ import annotations

import asyncio
import math
import time

import orjson
import pytest
import yaml
from aiohttp import web
from test_blame import GOOD, SHAPES, chat

from laar.core.membership import WAKE_LABEL, EndpointSpec, Way
from laar.datalayer.asking import new_session, wake
from support import eventually
from support.clients import post
from support.served import ServedEngine

pytestmark = pytest.mark.envoy

KEY = "a-secret"


class Sleeper(ServedEngine):
    """An engine that holds requests while it sleeps, like vLLM."""

    def __init__(self, state="weights_offloaded", *, wake=200, took_s=0.2, wakes=True):
        self.state, self.wake, self.took_s = state, wake, took_s
        self.wakes = wakes and wake == 200
        self.awake, self.busy = asyncio.Event(), asyncio.Event()
        self.busy.set()
        self.answered, self.woken, self.probes = 0, 0, 0
        self.status, self.asked = 200, 0
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
        if request.path == "/wake_up" and request.method == "POST":
            assert request.headers["authorization"] == f"Bearer {KEY}"
            self.woken += 1
            await asyncio.sleep(self.took_s)
            if self.wakes:
                self.awake.set()
            return web.Response(status=self.wake)
        if request.method != "POST" or request.path == "/tokenize":
            return web.Response(text="{}")
        await request.read()
        self.asked += 1
        self.probes += request.headers.get("user-agent") == "laar-trial"
        if self.awake.is_set():
            await self.busy.wait()
        else:
            await self.awake.wait()
        self.answered += 1
        return web.Response(status=self.status, body=GOOD, content_type="application/json")


async def fleet_of(gateway, *engines, labels):
    """Start a picker for the engines once it has read whether they sleep; return it."""
    key_file = gateway.directory / "key"
    key_file.write_text(KEY)
    own = {"models": ["m"], "key_file": str(key_file), "labels": labels}
    document = {"endpoints": [{"address": engine.address, **own} for engine in engines]}
    gateway.endpoints_file.write_text(yaml.safe_dump(document))
    runner = await gateway.picker()
    table = runner.picker.table
    asleep = [not engine.awake.is_set() for engine in engines]
    await eventually(
        lambda: (
            (table.asleep[: len(engines)] > 0).tolist() == asleep
            and not any(map(math.isnan, table.read_at[: len(engines)]))
        )
    )
    return runner


async def shown(http, gateway, path):
    async with http.get(gateway.url("admin", path)) as answer:
        return orjson.loads(await answer.read())


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_engine_is_woken_for_the_requests_that_need_it(gateway, http, shape):
    engine = await gateway.enter(Sleeper())
    runner = await fleet_of(gateway, engine, labels={WAKE_LABEL: "true"})
    envoy = await gateway.envoy(shape)
    ended = await asyncio.gather(*(post(http, envoy, chat(f"prompt {n}")) for n in range(5)))
    assert [answer.status for answer in ended] == [200] * 5
    assert (engine.woken, engine.answered) == (1, 5)
    table = runner.picker.table
    await eventually(lambda: bool(engine.took_s <= table.wake_s[0] < 5.0), what="its page")
    decisions = (await shown(http, gateway, "/decisions"))["decisions"]
    one = await shown(http, gateway, f"/decisions/{decisions[-1]['id']}")
    assert "It is asleep; waking it takes about 6.0 s." in one["sentence"]


@pytest.mark.parametrize("state", ["weights_offloaded", "discard_all"])
async def test_an_engine_that_only_its_page_calls_asleep_gets_requests(gateway, http, state):
    engine = await gateway.enter(Sleeper(state))
    engine.awake.set()
    engine.shown_awake = False
    await fleet_of(gateway, engine, labels={})
    envoy = await gateway.envoy()
    ended = [await post(http, envoy, chat(f"prompt {n}")) for n in range(3)]
    assert [answer.status for answer in ended] == [200] * 3


@pytest.mark.parametrize(("labels", "state"), [({}, "weights_offloaded"), (None, "discard_all")])
async def test_a_client_gets_the_error_that_all_engines_sleep(gateway, http, labels, state):
    engine = await gateway.enter(Sleeper(state))
    labels = {WAKE_LABEL: "true"} if labels is None else labels
    await fleet_of(gateway, engine, labels=labels)
    envoy = await gateway.envoy()
    status, _, said = await post(http, envoy, chat("a prompt"))
    assert (status, engine.woken) == (503, 0)
    assert b"asleep and must be woken" in said
    engine.awake.set()  # somebody woke it

    async def answers():
        return (await post(http, envoy, chat("a prompt"))).status == 200

    await eventually(answers, what="an answer")


async def test_an_engine_that_does_not_wake_is_reported_and_tried_again(gateway, http):
    asleep = await gateway.enter(Sleeper(wake=500))
    runner = await fleet_of(gateway, asleep, labels={WAKE_LABEL: "true"})
    envoy = await gateway.envoy()
    waiting = asyncio.create_task(post(http, envoy, chat("a prompt")))
    await eventually(lambda: asleep.woken > 0, what="an attempt to wake it")
    problems = runner.picker.problems
    source = f"wake {asleep.address}"
    await eventually(lambda: source in problems, what="a problem")
    assert "POST /wake_up answers 500" in problems[source]
    asleep.awake.set()
    assert (await waiting)[0] == 200
    await eventually(lambda: source not in problems, what="the end of the problem")


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_engine_without_a_wake_up_path_gets_no_more_requests(gateway, http, shape):
    asleep = await gateway.enter(Sleeper(wake=404))
    runner = await fleet_of(gateway, asleep, labels={WAKE_LABEL: "true"})
    envoy = await gateway.envoy(shape)
    waiting = asyncio.create_task(post(http, envoy, chat("a prompt")))
    problems, source = runner.picker.problems, f"wake {asleep.address}"
    await eventually(lambda: source in problems, what="a problem")
    assert "POST /wake_up answers 404" in problems[source]
    for _ in range(3):
        status, _, said = await post(http, envoy, chat("another prompt"))
        assert (status, b"asleep and must be woken" in said) == (503, True)
    assert (asleep.asked, asleep.woken) == (1, 1)
    asleep.awake.set()  # somebody woke it
    assert (await waiting)[0] == 200
    await eventually(lambda: source not in problems, what="the end of the problem")
    assert (await post(http, envoy, chat("a prompt"))).status == 200
    asleep.wake, asleep.wakes = 200, True  # restarted with a path to wake it
    asleep.awake.clear()
    await eventually(lambda: bool(runner.picker.table.asleep[0] > 0.0), what="its page")
    assert (await post(http, envoy, chat("a prompt"))).status == 200
    assert asleep.woken == 2


async def test_an_engine_is_woken_once_its_ca_file_is_readable_again(tmp_path):
    missing = Way(tls=True, ca_file=str(tmp_path / "ca.pem"))
    spec = EndpointSpec(address="127.0.0.1:9", models=("m",), way=missing)
    async with new_session() as session:
        _, problem = await wake(session, spec, time.monotonic)
    assert "FileNotFoundError" in problem
