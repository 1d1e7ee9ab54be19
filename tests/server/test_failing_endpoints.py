"""If an endpoint fails, a real Envoy tries the next one, or the client gets a clear error."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

import orjson
import pytest

from support import Answer, eventually, metric
from support.clients import chat, post
from support.grids import crossed

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "gateway", "full-duplex"]


def error(body):
    return orjson.loads(body)["error"]


async def test_an_endpoint_that_redirects_to_a_login_attracts_no_requests(gateway, http):
    """It answers faster than any engine."""
    proxy, *good = [await gateway.upstream() for _ in range(3)]
    proxy.chat_answer = Answer(status=302, headers={"location": "/login"}, body=b"Found")
    message = {"role": "assistant", "content": "four"}
    engine = orjson.dumps({"choices": [{"message": message, "finish_reason": "stop"}]})
    for each in good:
        each.chat_answer = Answer(body=engine, wait_s=0.05)
    gateway.members(*((u.address, "m") for u in (proxy, *good)))
    await gateway.picker(bodies={"sample_answers": 1.0})
    envoy = await gateway.envoy("standalone")

    async def statuses():
        async def one():
            async with http.post(
                envoy.url() + "/v1/chat/completions",
                data=chat(),
                headers={"content-type": "application/json"},
                allow_redirects=False,
            ) as answer:
                return answer.status

        return Counter(await asyncio.gather(*(one() for _ in range(6))))

    async def is_out():
        await statuses()
        async with http.get(gateway.url("admin", "/fleet")) as answer:
            rows = (await answer.json())["fleet"]
        [row] = [row for row in rows if row["endpoint"] == proxy.address]
        return row["health"] != "ok" and "rejects what its siblings answer" in row["fault"]

    await eventually(is_out, what="the endpoint to be out")
    assert await statuses() == {200: 6}


@pytest.mark.parametrize(
    ("shape", "status", "attempts"),
    crossed(SHAPES, [(503, 1), (500, 2), (429, 1), (401, 1), (400, 1)]),
)
async def test_if_all_endpoints_fail_the_client_gets_the_engines_error(
    gateway, http, shape, status, attempts
):
    only = await gateway.upstream()
    only.default_answer = Answer(
        status=status, body=b'{"error": {"message": "engine"}}', headers={"retry-after": "7"}
    )
    gateway.members((only.address, "m"))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    answer = await post(http, envoy, chat())
    assert (answer.status, answer.body) == (status, b'{"error": {"message": "engine"}}')
    assert answer.headers["retry-after"] == "7"
    assert answer.headers["x-laar-reason"] == "laar"
    assert len(only.asked) == attempts


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_silent_endpoint_is_abandoned_after_the_allowed_time(gateway, http, shape):
    good, hung = await gateway.upstream(), socket.create_server(("127.0.0.1", 0), backlog=64)
    gateway.members(("{}:{}".format(*hung.getsockname()), "m"), (good.address, "m"))
    await gateway.picker()

    def hurry(bootstrap):
        for policy in _patient_policies(bootstrap):
            policy["per_try_idle_timeout"] = "0.3s"
            policy.pop("per_try_timeout", None)

    envoy = await gateway.envoy(shape, hurry)
    with hung:
        answers = await asyncio.gather(*(post(http, envoy, chat(stream=True)) for _ in range(8)))
    assert Counter(answer.status for answer in answers) == {200: 8}
    assert len(good.asked) == 8


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_whose_answer_does_not_begin_is_hedged(gateway, http, shape, stream):
    good, hung = await gateway.upstream(), socket.create_server(("127.0.0.1", 0), backlog=64)
    gateway.members(("{}:{}".format(*hung.getsockname()), "m"), (good.address, "m"))
    runner = await gateway.picker()

    def hurry(bootstrap):
        for policy in _patient_policies(bootstrap):
            if "per_try_timeout" in policy:
                policy["per_try_timeout"] = "0.3s"

    envoy = await gateway.envoy(shape, hurry)
    body = chat(stream=stream, max_tokens=8)
    with hung:
        answers = await asyncio.gather(*(post(http, envoy, body) for _ in range(8)))
    assert Counter(answer.status for answer in answers) == {200: 8}
    assert {answer.headers["x-laar-endpoint"] for answer in answers} == {good.address}
    assert len(good.asked) == 8
    assert metric(runner, "laar_failed_attempts_total") > 0, "the test shows nothing otherwise"
    await eventually(lambda: not runner.picker.table.in_flight.any(), what="release of everything")


def _patient_policies(bootstrap):
    """Return the retry policies of the routes that decisions choose; these limit silence."""
    listener = bootstrap["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    return [r["route"]["retry_policy"] for r in routes if "dynamic_metadata" in r["match"]]
