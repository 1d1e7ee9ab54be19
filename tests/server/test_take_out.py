"""An endpoint is taken out by deleting its line or by a label: its answers in flight complete."""

import asyncio
import re

import pytest

from laar.doctor.doctor import Doctor
from support import Answer, eventually
from support.clients import chat, post

pytestmark = pytest.mark.envoy


@pytest.mark.parametrize("by", ["deletion", "label"])
@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_answers_in_flight_complete_at_an_endpoint_that_is_taken_out(
    gateway, http, shape, by
):
    slow, fast = await gateway.upstream(), await gateway.upstream()
    finish = asyncio.Event()

    def shows(running):
        page = b"vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n" % running
        slow.default_answer = Answer(body=page)

    async def answer():
        shows(1)
        yield b"data: {}\n\n"
        await finish.wait()
        yield b"data: [DONE]\n\n"
        shows(0)

    slow.chat_answer = Answer.sse(answer())
    gateway.members((slow.address, "m"))
    await gateway.picker()
    envoy = await gateway.envoy(shape)

    async def ask():
        answer = await post(http, envoy, chat(stream=True), **{"x-session-id": "one"})
        assert answer.status == 200, answer.body
        return answer.headers["x-laar-endpoint"], answer.body

    async def moved():
        return (await ask())[0] == fast.address

    long = asyncio.create_task(ask())
    await eventually(lambda: len(slow.asked) == 1, what="the request")
    if by == "deletion":
        gateway.members((fast.address, "m"))
    else:
        gateway.members((slow.address, "m"), (fast.address, "m"), draining=[slow.address])
    # Requests go there until Envoy knows the other endpoint, and would wait for the same event.
    slow.chat_answer = Answer()
    await eventually(moved)
    for _ in range(5):
        assert await moved()
    assert not long.done()
    if by == "label":
        # The other requests may still be ending, and readings be late.
        await _says(gateway, f"{slow.address} drains: no new requests, 1 in flight")
        await _have_health(gateway, http, {"draining": 1, "ok": 1})
        text = await _text(http, gateway.url("admin", "/decisions?limit=1"))
        assert "drains: it gets no new requests" in text
    finish.set()
    where, text = await long
    assert where == slow.address
    assert text.endswith(b"[DONE]\n\n")
    if by == "label":
        await eventually(lambda: gateway.runner.picker.table.slot(slow.address) < 0)
        await _says(gateway, f"drained, and may be stopped: {slow.address}")
        await _have_health(gateway, http, {"drained": 1, "ok": 1})
        gateway.members((slow.address, "m"), (fast.address, "m"))
        await eventually(lambda: gateway.runner.picker.table.slot(slow.address) >= 0)


async def _text(http, url):
    async with http.get(url) as page:
        return await page.text()


async def _have_health(gateway, http, expected):
    async def have():
        page = await _text(http, gateway.url("admin", "/metrics"))
        found = re.findall(r'laar_endpoints_by_health{health="([^"]+)"} (\d+)', page)
        return {state: int(count) for state, count in found} == expected

    await eventually(have, what=str(expected))


async def _says(gateway, what):
    async def says():
        doctor = Doctor(gateway.settings, envoy=None, picker=gateway.url("admin", ""))
        return what in [finding.what for finding in await doctor.examine()]

    await eventually(says, what=what)
