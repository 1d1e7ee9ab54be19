"""An endpoint is taken out by deleting its line: its answers in flight complete."""

import asyncio
import re

import pytest

from support import eventually

pytestmark = pytest.mark.envoy


@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_answers_in_flight_complete_at_an_endpoint_that_is_taken_out(gateway, http, shape):
    slow, fast = await gateway.simulated(), await gateway.simulated(time_scale=0.001)
    gateway.members((slow.address, "m"))
    await gateway.picker()
    envoy = await gateway.envoy(shape)

    async def ask(tokens):
        body = {"model": "m", "stream": True, "max_tokens": tokens, "ignore_eos": True}
        body["messages"] = [{"role": "user", "content": "hello"}]
        async with http.post(f"{envoy.url()}/v1/chat/completions", json=body) as answer:
            return answer.headers["x-laar-endpoint"], await answer.text()

    async def moved():
        return (await ask(1))[0] == fast.address

    async def started():
        async with http.get(f"http://{slow.address}/metrics") as page:
            return bool(re.search(r"num_requests_running\S* 1", await page.text()))

    long = asyncio.create_task(ask(150))
    await eventually(started)
    gateway.members((fast.address, "m"))
    await eventually(moved)
    assert not long.done()
    where, text = await long
    assert where == slow.address
    assert text.rstrip().endswith("[DONE]")
