"""`routing.compare` with a real Envoy: a user sees how often another policy would differ."""

import asyncio

import orjson
import pytest

from laar.server.admin.explain import explain, read_request
from laar.server.admin.metrics import metrics_page
from support import Answer, eventually
from support.clients import chat, post

pytestmark = pytest.mark.envoy


@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_the_share_of_requests_that_least_loaded_would_send_elsewhere(gateway, http, shape):
    a, b = await gateway.upstream(), await gateway.upstream()
    gateway.members((a.address, "m"), (b.address, "m"))
    log = gateway.directory / "decisions.log"
    runner = await gateway.picker(
        routing={"compare": "least-loaded", "compare_share": 1.0},
        decisions={"log": str(log)},
        health={"enabled": False},  # it would doubt one of the endpoints for their equal answers
    )
    envoy = await gateway.envoy(shape)
    picker, done = runner.picker, asyncio.Event()
    prompt = chat(text="a long document " * 4000, stream=True)

    async def prefilled():
        await asyncio.sleep(0.5)
        yield b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'

    for upstream in (a, b):
        upstream.script(Answer.sse(prefilled()))
    first = (await post(http, envoy, prompt)).headers["x-upstream"]
    warm = a if first == a.address else b

    async def chunks():
        await done.wait()
        yield b"data: [DONE]\n\n"

    warm.script(Answer.sse(chunks()))
    waiting = asyncio.create_task(post(http, envoy, prompt))
    await eventually(lambda: bool(picker.table.in_flight.any()), what="a request in flight")
    assert (await post(http, envoy, prompt)).headers["x-upstream"] == first
    cold = b if warm is a else a
    shown = explain(picker, read_request(picker, prompt, {}))["compared"]
    assert (shown["endpoint"], shown["differs"]) == (cold.address, True)
    done.set()
    await waiting
    page = metrics_page(picker).decode()
    for choice, count in (("same", 2), ("other", 1), ("failed", 0)):
        assert f'laar_compared_total{{choice="{choice}",policy="least-loaded"}} {count}.0' in page
    frame = picker.observability.page.frame(picker.clock())["compared"]
    assert (frame["policy"], frame["decisions"], frame["differ"]) == ("least-loaded", 3, 1)
    assert frame["more_s"] > 0.1

    async def logged():
        return log.exists() and log.read_bytes().count(b"\n") == 3

    await eventually(logged, what="three lines")
    lines = [orjson.loads(line)["compared"] for line in log.read_bytes().splitlines()]
    (differing,) = [line for line in lines if line["differs"]]
    assert (differing["endpoint"], differing["saved_s"]) == (cold.address, None)
    gateway.change(routing={"compare": "random"})
    await eventually(lambda: 'policy="random"' in metrics_page(picker).decode(), what="the change")
    gateway.change(routing={"compare": ""})
    await eventually(lambda: picker.director.comparison is None, what="the end of the comparison")
    assert "laar_compared_total{" not in metrics_page(picker).decode()
