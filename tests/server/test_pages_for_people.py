"""An engine that answers with a web page loses no request: another engine answers it."""

from __future__ import annotations

import asyncio
import random
import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.envoy.bootstrap import PAGES
from laar.protocol.usefulness import flaw_of_type
from laar.request import TEXTS
from support.clients import post
from support.grids import crossed
from support.upstream import Answer

REQUESTS = 40
PAGE = b"<!doctype html><title>Welcome</title>"
TYPES = ("text/html", "Text/HTML; charset=utf-8", "text/xml", "text/css", "application/xhtml+xml")
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5},
    "/v1/embeddings": {"input": "hello"},
}


@pytest.mark.envoy
@pytest.mark.long
@pytest.mark.parametrize(("shape", "kind"), crossed(["standalone", "gateway"], [*TYPES]))
async def test_a_page_for_people_is_repeated_elsewhere(gateway, http, figure, shape, kind):
    rng = random.Random(kind)
    engines = [await gateway.upstream() for _ in range(3)]
    engines[0].default_answer = Answer(headers={"content-type": kind}, body=PAGE)
    gateway.members(*((engine.address, "m") for engine in engines))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    lost = 0
    for _ in range(REQUESTS):
        body = {"model": "m", "stream": rng.random() < 0.5}
        path, more = rng.choice([*BODIES.items()])
        got = await post(http, envoy, orjson.dumps({**body, **more}), path)
        lost += got.status != 200 or got.body == PAGE
    if shape == "standalone":
        await gateway.stop_picker()
        for _ in range(REQUESTS):
            body = {"model": "m", **BODIES["/v1/chat/completions"]}
            got = await post(http, envoy, orjson.dumps(body))
            lost += got.status != 200 or got.body == PAGE
    figure(f"{shape}: lost of {REQUESTS}, one engine of three sends {kind}", lost, "0")
    assert lost == 0
    assert any(request.method == "POST" for request in engines[0].asked)


@pytest.mark.envoy
async def test_a_page_that_was_asked_for_and_of_what_may_have_acted_is_passed_on(gateway, http):
    engine = await gateway.upstream()
    engine.default_answer = Answer(headers={"content-type": "text/html"}, body=PAGE)
    gateway.members((engine.address, "m"))
    await gateway.picker()
    envoy = await gateway.envoy()
    async with http.get(f"{envoy.url()}/docs") as got:
        assert (got.status, await got.read()) == (200, PAGE)
    before = len(engine.asked)
    await post(
        http, envoy, orjson.dumps({"model": "m", "input": "hello", "store": True}), "/v1/responses"
    )
    assert len(engine.asked) == before + 1


@given(st.from_regex(r"[a-z]{1,12}/[a-z+.-]{1,16}", fullmatch=True), st.booleans())
def test_what_is_repeated_is_no_answer_of_any_api(kind, stream):
    if re.match(PAGES, kind):
        assert all(flaw_of_type(kind, api, stream=stream) for api in TEXTS)


@pytest.mark.envoy
@pytest.mark.parametrize("picks", [True, False])
async def test_an_answer_that_is_no_http_is_bad_with_or_without_a_picker(gateway, http, picks):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"what is this\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await gateway.enter(await asyncio.start_server(answer, "127.0.0.1", 0))
    host, port = server.sockets[0].getsockname()
    gateway.members((f"{host}:{port}", "m"))
    await gateway.picker()
    envoy = await gateway.envoy()
    if not picks:
        await gateway.stop_picker()
    body = orjson.dumps({"model": "m", **BODIES["/v1/chat/completions"]})
    got = await post(http, envoy, body)
    assert (got.status, got.headers["x-laar-reason"]) == (502, "bad-answer")
