"""laar behind gateways with the habits of real ones: Envoys with none of laar's own conventions."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from laar.envoy.process import EnvoyProcess
from support import Answer
from support.clients import CHAT, chat, post
from support.gateways import GATEWAYS, OBJECTIVE, bootstrap

pytestmark = pytest.mark.envoy

habits = pytest.mark.parametrize("habits", GATEWAYS.values(), ids=GATEWAYS)
ALIAS = {"auto": ["m"]}


async def started(gateway: Any, habits: Any, count: int = 3, **options: Any) -> tuple[Any, Any]:
    """Start endpoints, the picker and a gateway; return the endpoints, by address, and Envoy."""
    members = [await gateway.upstream() for _ in range(count)]
    gateway.members(*((one.address, "m") for one in members))
    await gateway.picker(routing={"policy": "round-robin", "aliases": ALIAS})
    return {one.address: one for one in members}, await behind(gateway, habits, members, **options)


async def behind(gateway: Any, habits: Any, members: Any, **options: Any) -> EnvoyProcess:
    listed = [one.address for one in members]
    rendered = bootstrap(habits, gateway.settings.listen.ext_proc, listed, **options)
    directory = gateway.directory / "gateway"
    directory.mkdir()
    return await gateway.enter(EnvoyProcess(rendered, directory))


@habits
async def test_each_request_reaches_its_endpoint_and_is_counted_once(gateway, http, habits):
    members, envoy = await started(gateway, habits)
    other = {f"x-header-{n}": "v" for n in range(95 - 11)}  # Envoy and the client add eleven
    for _ in range(3):
        for headers in ({}, other, {"x-request-id": "the-same", "x-laar-ticket": "forged"}):
            answer = await post(http, envoy, chat(model="auto"), **headers)
            assert answer.status == 200
            assert answer.headers["x-laar-endpoint"] == answer.headers["x-upstream"]
            asked = members[answer.headers["x-upstream"]].asked[-1]
            assert asked.body == chat()
    assert all(len(one.asked) == 3 for one in members.values())
    assert gateway.runner.picker.table.decisions == 9
    log = envoy.log_path.read_text()
    assert "timeout" not in log, "no extension of a timeout that nobody allowed"


@habits
async def test_the_clients_name_of_the_model_is_restored_in_every_answer(gateway, http, habits):
    members, envoy = await started(gateway, habits, 1)
    (member,) = members.values()
    member.default_answer = Answer(body=b'{"id": "1", "model": "m", "choices": [{"text": "ok"}]}')
    answer = await post(http, envoy, chat(model="auto"))
    assert orjson.loads(answer.body)["model"] == "auto"


@habits
async def test_a_route_chosen_by_an_objective_is_kept(gateway, http, habits):
    other = await gateway.upstream()
    members, envoy = await started(gateway, habits, other=other.address)
    for _ in range(3):
        answer = await post(http, envoy, chat(), **{OBJECTIVE: "batch"})
        assert answer.headers["x-upstream"] in members
        assert answer.headers["x-laar-endpoint"] == answer.headers["x-upstream"]
    assert not other.asked


@habits
async def test_what_the_gateway_answers_itself_says_nothing_of_endpoints(gateway, http, habits):
    members, envoy = await started(gateway, habits, timeout_s=0.3)
    for one in members.values():
        one.chat_answer = Answer(wait_s=0.6)
    late = await asyncio.gather(*(post(http, envoy, chat(f"{n}")) for n in range(12)))
    assert [answer.status for answer in late] == [504] * 12
    assert {orjson.loads(answer.body)["error"]["reason"] for answer in late} == {"timed-out"}
    failures = gateway.runner.picker.director.health.records.endpoints.values()
    assert all(not sum(one.failures.values()) for one in failures)


@habits
async def test_an_engine_that_fails_behind_a_gateway_is_still_found_out(gateway, http, habits):
    members, envoy = await started(gateway, habits)
    broken = next(iter(members.values()))
    broken.chat_answer = Answer(status=503, body=b'{"error": {"message": "broken"}}')
    statuses = [(await post(http, envoy, chat(f"{n}"))).status for n in range(20)]
    assert 503 in statuses
    assert statuses[-6:] == [200] * 6
