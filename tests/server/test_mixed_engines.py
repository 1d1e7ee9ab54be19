"""A fleet of vLLM engines of four kinds, of which each has only the routes of its kind."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from support import eventually
from support.served import ServedEngine

pytestmark = pytest.mark.envoy

TEXTS = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/chat/completions/batch",
}
SCORES = {"/pooling", "/score", "/v1/score", "/rerank", "/v1/rerank"}
ROUTES = {
    "chat": TEXTS,
    "embed": {"/v1/embeddings", "/v2/embed", *SCORES},
    "rerank": {"/classify", *SCORES},
    "whisper": {"/v1/audio/transcriptions", "/v1/audio/translations"},
}
EVERYWHERE = {"/tokenize", "/detokenize"}
BODY = {
    "messages": [{"role": "user", "content": "hello"}],
    "prompt": "hello",
    "input": "hello",
    "query": "hello",
    "documents": ["d"],
}


class Engine(ServedEngine):
    """Answers on the routes of its kind: 404 on others, 405 to a GET."""

    def __init__(self, kind):
        self.kind = kind
        self.asked = []

    async def _handle(self, request):
        await request.read()
        if request.path in ("/health", "/metrics"):
            return web.Response()
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": self.kind, "root": self.kind}]})
        if request.path not in ROUTES[self.kind] | EVERYWHERE:
            return web.json_response({"detail": "Not Found"}, status=404)
        if request.method != "POST":
            return web.json_response({"detail": "Method Not Allowed"}, status=405)
        if not request.headers["user-agent"].startswith("laar-"):  # a probe of chat templates
            self.asked.append(request.path)
        content = {"content": "x"}
        return web.json_response(
            {
                "choices": [{"text": "x", "message": content, "finish_reason": "stop"}],
                "content": [{"text": "x"}],
                "output": [content],
                "data": [{"embedding": [0.5]}],
            }
        )


def body_of(path, model):
    """Return a body for a path: a form with a file, or JSON."""
    named = {"model": model} if model else {}
    if "/audio/" not in path:
        return {"json": {**named, **BODY}}
    form = aiohttp.FormData(named)
    form.add_field("file", b"RIFF", filename="a.wav")
    return {"data": form}


@pytest.fixture
async def engines(gateway):
    """One engine of each kind, behind a picker that knows their routes."""
    found = {kind: await gateway.enter(Engine(kind)) for kind in ROUTES}
    gateway.members(*((engine.address, kind) for kind, engine in found.items()))
    runner = await gateway.picker()

    async def known():
        own = {"chat": "/v1/chat/completions", "embed": "/v1/embeddings", "rerank": "/classify"}
        own["whisper"] = "/v1/audio/transcriptions"
        with_route, specs = runner.picker.with_route, runner.picker.table.specs()
        return [spec.models[0] for spec in specs if spec.generates] == ["chat"] and all(
            with_route(own[kind], "auto") == {engine.address} for kind, engine in found.items()
        )

    await eventually(known, what="the engines' routes")
    return found


@pytest.mark.parametrize("model", ["auto", ""])
async def test_requests_without_a_concrete_model_reach_an_engine_with_the_path(
    gateway, http, engines, model
):
    envoy = await gateway.envoy()
    for path in sorted({*EVERYWHERE, *(path for routes in ROUTES.values() for path in routes)}):
        for _ in range(4):
            async with http.post(envoy.url() + path, **body_of(path, model)) as answer:
                assert answer.status == 200, path
    assert set(engines["chat"].asked) >= EVERYWHERE  # counted as the chat model counts
    assert set(engines["whisper"].asked) == ROUTES["whisper"]


async def test_a_request_goes_to_its_model_even_if_its_engine_lacks_the_path(
    gateway, http, engines
):
    envoy = await gateway.envoy()
    for path in ("/v1/audio/transcriptions", "/v1/embeddings", "/v1/rerank"):
        async with http.post(envoy.url() + path, **body_of(path, "chat")) as answer:
            assert (answer.status, await answer.json()) == (404, {"detail": "Not Found"})
    async with http.post(envoy.url() + "/tokenize", **body_of("/tokenize", "rerank")) as answer:
        assert answer.status == 200
    assert engines["rerank"].asked == ["/tokenize"]
