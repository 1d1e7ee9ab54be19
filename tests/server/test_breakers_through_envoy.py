"""A failing endpoint behind a real Envoy: clients hardly notice, and operators can see it."""

import asyncio
from collections import Counter

import orjson
import pytest

from support import Answer, eventually

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "full-duplex"]


def without_retries(bootstrap):
    """Remove the retry policies, so that each answer of an endpoint reaches the client."""
    if isinstance(bootstrap, dict):
        bootstrap.pop("retry_policy", None)
        bootstrap.pop("retryPolicy", None)
        for value in bootstrap.values():
            without_retries(value)
    elif isinstance(bootstrap, list):
        for value in bootstrap:
            without_retries(value)


async def fleet(gateway, shape, bad, **sections):
    """Three endpoints with one model, the first of which answers chat with `bad`."""
    upstreams = [await gateway.upstream() for _ in range(3)]
    upstreams[0].chat_answer = bad
    gateway.members(*((upstream.address, "m") for upstream in upstreams))
    runner = await gateway.picker(**sections)
    envoy = await gateway.envoy(shape, without_retries)
    return upstreams, runner, envoy


async def send(http, url, number, *, stream=False):
    body = {"model": "m", "messages": [{"role": "user", "content": f"{number}"}], "stream": stream}
    async with http.post(f"{url}/v1/chat/completions", data=orjson.dumps(body)) as answer:
        text = await answer.read()
        return answer.status if b'"error"' not in text else f"{answer.status} with an error"


async def load(http, url, requests, *, at_once=8, stream=False):
    """Count how requests ended, by status."""
    left = iter(range(requests))

    async def client():
        ends = Counter()
        for number in left:
            ends[await send(http, url, number, stream=stream)] += 1
        return ends

    ended = await asyncio.gather(*(client() for _ in range(at_once)))
    return sum(ended, Counter())


async def metric(http, gateway, name, **labels):
    """Return a sample of the metrics page; None if it is missing."""
    async with http.get(gateway.url("admin", "/metrics")) as answer:
        page = (await answer.read()).decode()
    start = name + "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "} "
    found = [line for line in page.splitlines() if line.startswith(start)]
    return float(found[0].removeprefix(start)) if found else None


async def fleet_row(http, gateway, address):
    async with http.get(gateway.url("admin", "/fleet")) as answer:
        shown = orjson.loads(await answer.read())
    return next(row for row in shown["fleet"] if row["endpoint"] == address)


@pytest.mark.parametrize("shape", SHAPES)
async def test_one_refusing_endpoint_of_three_gets_no_requests_and_is_shown(gateway, http, shape):
    # laar's own policy would avoid the failing endpoint before the breaker opens.
    routing = {"policy": "least-loaded"}
    upstreams, _, envoy = await fleet(
        gateway, shape, Answer(status=503, body=b"no"), routing=routing
    )
    bad = upstreams[0].address
    ends = await load(http, envoy.url(), 150)
    assert ends[200] >= 140
    assert set(ends) <= {200, 503}
    assert await metric(http, gateway, "laar_endpoint_breaker_state", endpoint=bad) == 3.0
    failed = await metric(
        http, gateway, "laar_endpoint_failures_total", endpoint=bad, kind="status"
    )
    assert failed == ends[503]
    row = await fleet_row(http, gateway, bad)
    assert row["health"] == "failing"
    assert row["answers"] < 0.7
    body = {"model": "m", "messages": [{"role": "user", "content": "why"}]}
    async with http.post(gateway.url("admin", "/explain"), json=body) as answer:
        shown = orjson.loads(await answer.read())
    why = {row["endpoint"]: row["why"] for row in shown["filtered"]}
    assert "failing (answers 502, 503 or 504)" in why[bad]
    # The endpoint recovers: a probe by the picker, then a request, and it serves again.
    upstreams[0].chat_answer = None
    before = len(upstreams[0].asked)

    async def serves():
        assert set(await load(http, envoy.url(), 10)) == {200}
        return len(upstreams[0].asked) > before + 5

    await eventually(serves, timeout_s=30.0)
