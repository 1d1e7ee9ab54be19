"""Engines that send something before the first token, and leave streams open after the last."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from aiohttp import web

from support.clients import CHAT, chat, post
from support.served import ServedEngine

pytestmark = pytest.mark.envoy

RESPONSES = "/v1/responses"
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
TEXT = {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 800, "completion_tokens": 1}}
MADE = {"type": "response.created", "response": {"id": "r", "object": "response", "output": []}}
DELTA = {"type": "response.output_text.delta", "delta": "Hi"}
DONE = {"type": "response.completed", "response": {"usage": {"input_tokens": 800}}}
DIALECTS = {CHAT: (ROLE, (TEXT, STOP, USAGE)), RESPONSES: (MADE, (DELTA, DONE))}
PREFILL_S = 1e-4
"""Seconds to prefill a byte of a body."""


class Early(ServedEngine):
    """An engine whose streams begin with a sign of life, or stay open."""

    def __init__(self, *, early=True, stays=False):
        self.early, self.stays, self.served, self.closing = early, stays, 0, asyncio.Event()

    async def _handle(self, request):
        if request.path not in DIALECTS:
            return web.Response(status=404)
        size_bytes = len(await request.read())
        self.served += 1
        first, rest = DIALECTS[request.path]
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        if self.early:
            await answer.write(b"data: %b\n\n" % json.dumps(first).encode())
        await asyncio.sleep(0.0 if self.stays else PREFILL_S * size_bytes)
        for event in rest:
            await answer.write(b"data: %b\n\n" % json.dumps(event).encode())
        if self.stays:
            await self.closing.wait()
        return answer


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_what_comes_early_is_no_first_token(gateway, http, figure, shape, path):
    engines = [await gateway.enter(Early(early=early)) for early in (True, False)]
    gateway.members((engines[0].address, "early"), (engines[1].address, "control"))
    runner = await gateway.picker()
    envoy = await gateway.envoy(shape)
    believed, early = {"early": 0.0, "control": 0.0}, []

    def decided(decision):
        believed[decision.model] = decision.view.terms.prefill_s.item(decision.position)

    def settled(decision, end):
        if end.ttft_s is not None:
            early.append(end.ttft_s < 0.9 * PREFILL_S * decision.request.body_bytes)

    runner.picker.director.watch(decided, settled)
    rng = random.Random(f"{shape} {path}")
    for number in range(15):
        words = rng.choice((200, 500, 1000, 1600)) if number < 14 else 800
        for model in believed:
            body = chat(f"{number:02} " * words, model=model, stream=True)
            if path == RESPONSES:
                body = body.replace(b'"messages"', b'"input"')
            assert (await post(http, envoy, body, path)).status == 200
    assert early
    assert not any(early)
    ratio = believed["early"] / believed["control"]
    figure("prefill believed where something comes early, beside a control", ratio, ".8 to 1.25")
    assert 0.7 < ratio < 1.4


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_streams_left_open_after_their_end_are_no_load(gateway, http, figure, shape):
    open_ended, other = [await gateway.enter(Early(stays=stays)) for stays in (True, False)]
    gateway.members((open_ended.address, "m"), (other.address, "m"))
    runner = await gateway.picker()
    envoy = await gateway.envoy(shape)
    kept = []

    async def ask(number):
        answer = await http.post(f"{envoy.url()}{CHAT}", data=chat(f"p{number}", stream=True))
        text = b""
        while b"stop" not in text:
            text += await answer.content.readany()
        kept.append(answer)

    try:
        for _ in range(10):
            await asyncio.gather(*(ask(len(kept) + n) for n in range(4)))
    finally:
        open_ended.closing.set()
        for answer in kept:
            answer.close()
    assert runner
    figure("of 40 requests at the engine of two that leaves streams open", open_ended.served, "16")
    assert open_ended.served >= 12
