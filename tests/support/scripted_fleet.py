"""A scripted chat endpoint that serves real HTTP on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web


@dataclass
class ScriptedFleet:
    """Answers by a function of the request's number, and records requests."""

    script: Callable[[int, dict[str, Any]], web.StreamResponse | str]
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    models: tuple[str, ...] = ("small",)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        answer = self.script(len(self.bodies) - 1, body)
        if isinstance(answer, str):
            answer = completion(answer)
        if body.get("stream") and isinstance(answer, web.Response) and answer.status == 200:
            return await streamed(request, answer)
        return answer

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": m} for m in self.models]})


def completion(text: str, headers: dict[str, str] | None = None, **usage: int) -> web.Response:
    return web.json_response(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "small",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": text},
                }
            ],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, **usage},
        },
        headers=headers,
    )


async def streamed(request: web.Request, whole: web.Response) -> web.StreamResponse:
    body = orjson.loads(whole.body)
    text = body["choices"][0]["message"]["content"]
    response = web.StreamResponse(headers=whole.headers)
    response.headers["content-type"] = "text/event-stream"
    response.headers.popall("content-length", None)
    await response.prepare(request)
    frame = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "small"}
    for part in (text[:3], text[3:]):
        choice = {"index": 0, "delta": {"content": part}, "finish_reason": None}
        await response.write(b"data: " + orjson.dumps({**frame, "choices": [choice]}) + b"\n\n")
    choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
    await response.write(b"data: " + orjson.dumps({**frame, "choices": [choice]}) + b"\n\n")
    usage = {**frame, "choices": [], "usage": body["usage"]}
    await response.write(b"data: " + orjson.dumps(usage) + b"\n\ndata: [DONE]\n\n")
    return response


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    """Return a function that starts scripted fleets, which stop after the test."""
    runners: list[web.AppRunner] = []

    async def start(script: Callable[[int, dict[str, Any]], Any], **given: Any) -> ScriptedFleet:
        fleet = ScriptedFleet(script, **given)
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", fleet.complete)
        app.router.add_get("/v1/models", fleet.list_models)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fleet.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return fleet

    yield start
    for runner in runners:
        await runner.cleanup()
