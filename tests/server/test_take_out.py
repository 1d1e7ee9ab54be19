"""An endpoint is taken out by deleting its line or by a label: its answers in flight complete."""

import asyncio
import re

import pytest

from laar.doctor.doctor import Doctor
from support import eventually

pytestmark = pytest.mark.envoy


@pytest.mark.parametrize("by", ["deletion", "label"])
@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_answers_in_flight_complete_at_an_endpoint_that_is_taken_out(
    gateway, http, shape, by
):
    slow, fast = await gateway.simulated(), await gateway.simulated(time_scale=0.001)
    gateway.members((slow.address, "m"))
    await gateway.picker()
    envoy = await gateway.envoy(shape)

    async def ask(tokens):
        body = {"model": "m", "stream": True, "max_tokens": tokens, "ignore_eos": True}
        body["messages"] = [{"role": "user", "content": "hello"}]
        headers = {"x-session-id": "one"}
        async with http.post(f"{envoy.url()}/v1/chat/completions", json=body, headers=headers) as a:
            assert a.status == 200, await a.text()
            return a.headers["x-laar-endpoint"], await a.text()

    async def moved():
        return (await ask(1))[0] == fast.address

    async def started():
        async with http.get(f"http://{slow.address}/metrics") as page:
            return bool(re.search(r"num_requests_running\S* 1", await page.text()))

    long = asyncio.create_task(ask(400))
    await eventually(started)
    if by == "deletion":
        gateway.members((fast.address, "m"))
    else:
        gateway.members((slow.address, "m"), (fast.address, "m"), draining=[slow.address])
    await eventually(moved)
    for _ in range(5):
        assert await moved()
    assert not long.done()
    if by == "label":
        await _says(gateway, http, f"{slow.address} drains: no new requests, 1 in flight")
        assert await _by_health(gateway, http) == {"draining": 1, "ok": 1}
        text = await _text(http, gateway.url("admin", "/decisions?limit=1"))
        assert "drains: it gets no new requests" in text
    where, text = await long
    assert where == slow.address
    assert text.rstrip().endswith("[DONE]")
    if by == "label":
        await eventually(lambda: gateway.runner.picker.table.slot(slow.address) < 0)
        await _says(gateway, http, f"drained, and may be stopped: {slow.address}")
        assert await _by_health(gateway, http) == {"drained": 1, "ok": 1}
        gateway.members((slow.address, "m"), (fast.address, "m"))
        await eventually(lambda: gateway.runner.picker.table.slot(slow.address) >= 0)


async def _text(http, url):
    async with http.get(url) as page:
        return await page.text()


async def _by_health(gateway, http):
    page = await _text(http, gateway.url("admin", "/metrics"))
    found = re.findall(r'laar_endpoints_by_health{health="([^"]+)"} (\d+)', page)
    return {state: int(count) for state, count in found}


async def _says(gateway, http, what):
    doctor = Doctor(gateway.settings, envoy=None, picker=gateway.url("admin", ""))
    found = [finding.what for finding in await doctor.examine()]
    assert what in found, found
