"""laar behind gateways with the habits of real ones: Envoys with none of laar's own conventions.

docs/guides/gateways.md has the table of habits. Which bodies pass how is drawn as a matrix in
tests/protocol/stream/test_stream_callers.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import orjson
import pytest

from laar.envoy.process import EnvoyProcess
from support import Answer, RecordingUpstream
from support.clients import chat, post
from support.gateways import GATEWAYS, IMPATIENT, OBJECTIVE, REFUSED, Habits, bootstrap

pytestmark = [
    pytest.mark.envoy,
    pytest.mark.parametrize("habits", GATEWAYS.values(), ids=GATEWAYS),
]
ANSWER = Answer(body=b'{"id": "1", "model": "m", "choices": [{"text": "ok"}]}')


async def started(
    gateway: Any, habits: Habits, **options: Any
) -> tuple[dict[str, RecordingUpstream], EnvoyProcess]:
    """Start endpoints, the picker and a gateway; return the endpoints, by address, and Envoy."""
    members = {one.address: one for one in [await gateway.upstream() for _ in range(3)]}
    gateway.members(*((address, "m") for address in members))
    await gateway.picker(routing={"policy": "round-robin", "aliases": {"auto": ["m"]}})
    rendered = bootstrap(habits, gateway.settings.listen.ext_proc, [*members], **options)
    directory = gateway.directory / "gateway"
    directory.mkdir()
    return members, await gateway.enter(EnvoyProcess(rendered, directory))


async def test_each_request_reaches_its_endpoint_and_is_counted_once(
    gateway: Any, http: Any, habits: Habits
) -> None:
    """Whatever its headers, it keeps its route, and its answer keeps the client's model name."""
    other = await gateway.upstream()
    members, envoy = await started(gateway, habits, other=other.address)
    for one in members.values():
        one.chat_answer = ANSWER
    many = {f"x-header-{n}": "v" for n in range(95 - 12)}  # Envoy and the client add twelve
    forged = {"x-request-id": "the-same", "x-laar-ticket": "forged"}
    for headers in (many, forged, {}) * 3:
        answer = await post(
            http, envoy, chat(model="auto"), **headers, **{OBJECTIVE: "batch", "x-laar-task": "t"}
        )
        assert answer.status == 200
        assert orjson.loads(answer.body)["model"] == "auto"
        assert answer.headers["x-laar-endpoint"] == answer.headers["x-upstream"]
    # Without the picker's own probes.
    served = {a: [r for r in one.asked if OBJECTIVE in r.headers] for a, one in members.items()}
    assert [len(requests) for requests in served.values()] == [3, 3, 3]
    assert {request.body for requests in served.values() for request in requests} == {chat()}
    assert not [request for request in other.asked if OBJECTIVE in request.headers]
    assert gateway.runner.picker.table.decisions == 9
    assert not gateway.runner.processor.tickets
    assert "message timeout" not in envoy.log_path.read_text()


async def test_only_what_endpoints_answer_themselves_is_held_against_them(
    gateway: Any, http: Any, habits: Habits
) -> None:
    members, envoy = await started(gateway, habits)
    for one in members.values():
        one.chat_answer = Answer(wait_s=0.8)
    asked = [
        post(http, envoy, chat(f"{n}"), **{header: "1"})
        for header, count in ((IMPATIENT, 12), (REFUSED, 20))
        for n in range(count)
    ]
    answers = await asyncio.gather(*asked)
    assert [answer.status for answer in answers] == [504] * 12 + [503] * 20
    reasons = Counter(orjson.loads(answer.body)["error"]["code"] for answer in answers)
    assert reasons == {"timed-out": 12, "no-answer": 20}
    health = gateway.runner.picker.director.health
    assert not any(sum(one.failures.values()) for one in health.records.endpoints.values())
    broken, *others = members.values()
    broken.chat_answer = Answer(status=503, body=b'{"error": {"message": "broken"}}')
    for one in others:
        one.chat_answer = ANSWER
    slot = gateway.runner.picker.table.slot(broken.address)
    for n in range(20):
        await post(http, envoy, chat(f"{n}"))
        if health.fault(slot):  # found by a client's request, or by a probe before
            break
    assert health.fault(slot)
