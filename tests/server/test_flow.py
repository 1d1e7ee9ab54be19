"""Flow control with a real Envoy: waiting, order, refusals, drain, cleaning up."""

from __future__ import annotations

import asyncio
import contextlib

import orjson
import pytest
import yaml

from laar.envoy.options import MESSAGE_TIMEOUT_S
from support import Answer, eventually, metric
from support.clients import chat, post

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "full-duplex"]
# One request fills an endpoint.
ONE_AT_A_TIME = {"enabled": True, "max_requests": 1, "min_hold_s": 50}


def asked(upstream):
    """Return the prompts that reached the endpoint, in order."""
    return [orjson.loads(r.body)["messages"][0]["content"] for r in upstream.asked]


def waiting(runner, number):
    return lambda: metric(runner, "laar_flow_waiting") == number


async def nothing_left(runner):
    names = ("laar_flow_waiting", "laar_flow_held_bytes")
    await eventually(
        lambda: (
            not any(metric(runner, n) for n in names) and not runner.picker.table.in_flight.any()
        ),
        what="release of everything",
    )


class Busy:
    """An endpoint with one request in flight, until `release`."""

    def __init__(self, gateway, http, shape, **flow):
        self.gateway, self.http, self.shape, self.flow = gateway, http, shape, flow
        self.sections, self.text, self.patient = {}, "first", True
        self.done = asyncio.Event()

    async def __aenter__(self):
        gateway = self.gateway
        self.upstream = await gateway.upstream()
        gateway.members((self.upstream.address, "m"))
        self.runner = await gateway.picker(flow={**ONE_AT_A_TIME, **self.flow}, **self.sections)
        options = {}
        if "tenant_header" in self.flow:  # as if a gateway in front had set it
            options = {
                "tenant_header": self.flow["tenant_header"],
                "trust_gateway_headers": True,
            }
        self.envoy = await gateway.envoy(self.shape, patient=self.patient, **options)

        async def answer():
            await self.done.wait()
            yield b"{}"

        self.upstream.script(Answer(chunks=answer()))
        self.first = asyncio.create_task(self.ask(self.text))
        await eventually(lambda: asked(self.upstream) == [self.text], what="the first request")
        return self

    async def __aexit__(self, *_failure):
        self.done.set()
        self.first.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self.first

    def ask(self, text, **headers):
        return post(self.http, self.envoy, chat(text), **headers)

    async def hold(self, text, **headers):
        """Send a request that waits; return its task."""
        before = metric(self.runner, "laar_flow_waiting")
        task = asyncio.create_task(self.ask(text, **headers))
        await eventually(waiting(self.runner, before + 1), what=f"{text} to wait")
        return task


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_client_that_disconnects_while_waiting_is_forgotten(gateway, http, shape):
    async with Busy(gateway, http, shape) as busy:
        held = await busy.hold("leaves")
        held.cancel()
        await eventually(waiting(busy.runner, 0), what="the queue to forget it")
        cancelled = 'laar_flow_sheds_total{reason="rejected-context-cancelled"}'
        assert metric(busy.runner, cancelled) == 1
        busy.done.set()
        await busy.first
        await nothing_left(busy.runner)
        assert asked(busy.upstream) == ["first"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_after_an_internal_error_the_request_is_still_sent(gateway, http, shape, monkeypatch):
    async with Busy(gateway, http, shape) as busy:
        held = await busy.hold("held")
        decide = busy.runner.picker.director.decide

        def failing(*arguments):
            monkeypatch.setattr(busy.runner.picker.director, "decide", decide)
            raise ZeroDivisionError

        monkeypatch.setattr(busy.runner.picker.director, "decide", failing)
        busy.done.set()
        assert (await held).status == 200
        assert asked(busy.upstream) == ["first", "held"]
        assert metric(busy.runner, "laar_stream_faults_total") == 1
        await nothing_left(busy.runner)


@pytest.mark.parametrize("shape", SHAPES)
async def test_engines_that_accept_a_priority_get_the_time_when_slack_ends(gateway, http, shape):
    upstream = await gateway.upstream()
    document = {"address": upstream.address, "models": ["m"], "priority_field": True}
    gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": [document]}))
    done = asyncio.Event()

    async def answer():
        await done.wait()
        yield b"{}"

    runner = await gateway.picker(flow=ONE_AT_A_TIME)
    envoy = await gateway.envoy(shape)
    upstream.script(Answer(chunks=answer()))
    first = asyncio.create_task(post(http, envoy, chat("first", priority=-99)))
    await eventually(lambda: asked(upstream) == ["first"], what="the first request")
    held = []
    for name, objective in (("patient", "40000"), ("urgent", "3000")):
        send = post(http, envoy, chat(name), **{"x-slo-ttft-ms": objective})
        held.append(asyncio.create_task(send))
        await eventually(waiting(runner, len(held)), what="the request to wait")
    done.set()
    await asyncio.gather(first, *held)
    sent = {
        orjson.loads(r.body)["messages"][0]["content"]: int(r.headers["x-vllm-priority"])
        for r in upstream.asked
    }
    assert sent["first"] < sent["urgent"]  # the client's -99 is ignored
    assert 20_000 < sent["patient"] - sent["urgent"] < 37_001


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("takes", [True, False])
async def test_only_the_picker_sets_the_priority_and_it_changes_no_body(
    gateway, http, shape, takes
):
    """It is sent in the engines' headers, which override the body field: a body may be signed."""
    upstream = await gateway.upstream()
    document = {"address": upstream.address, "models": ["m"], "priority_field": takes}
    gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": [document]}))
    await gateway.picker(flow=ONE_AT_A_TIME)
    envoy = await gateway.envoy(shape)
    body = chat("hello", priority=-99)
    forged = dict.fromkeys(("X-Vllm-Priority", "X-Override-Priority"), "-1000")
    forged |= {"X-Data-Parallel-Rank": "1", "digest": "sha-256=x"}
    await post(http, envoy, body, **forged)
    (request,) = upstream.asked
    assert request.body == body
    assert "x-data-parallel-rank" not in request.headers
    for name in ("x-vllm-priority", "x-override-priority"):
        sent = request.headers.getall(name, [])
        assert len(sent) == takes
        assert "-1000" not in sent


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_held_request_may_wait_longer_than_envoy_waits_for_a_picker(gateway, http, shape):
    busy = Busy(gateway, http, shape)
    busy.patient = False
    async with busy:
        held = await busy.hold("held")
        await asyncio.sleep(MESSAGE_TIMEOUT_S + 0.7)
        assert metric(busy.runner, "laar_flow_waiting") == 1
        busy.done.set()
        assert "x-laar-decision-id" in (await held).headers
        await nothing_left(busy.runner)
