"""Engines that send something before the first token, and leave streams open after the last."""

from __future__ import annotations

import asyncio
import json

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
PREFILL_S = 0.2


class Early(ServedEngine):
    """An engine whose streams begin with a sign of life, or stay open."""

    def __init__(self, *, early=True, stays=False):
        self.early, self.stays, self.served, self.closing = early, stays, 0, asyncio.Event()

    async def _handle(self, request):
        if request.path not in DIALECTS:
            return web.Response(status=404)
        await request.read()
        self.served += 1
        first, rest = DIALECTS[request.path]
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        if self.early:
            await answer.write(b"data: %b\n\n" % json.dumps(first).encode())
        await asyncio.sleep(0.0 if self.stays else PREFILL_S)
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
    first, believed = {"early": [], "control": []}, {}

    def decided(decision):
        believed[decision.model] = decision.view.terms.prefill_s.item(decision.position)

    def settled(decision, end):
        first[decision.model].append(end.ttft_s)

    runner.picker.director.watch(decided, settled)
    for number in range(15):
        for model in first:
            body = chat(f"{number} " * 800, model=model, stream=True)
            if path == RESPONSES:
                body = body.replace(b'"messages"', b'"input"')
            assert (await post(http, envoy, body, path)).status == 200
    seen = [ttft_s for times in first.values() for ttft_s in times if ttft_s is not None]
    assert min(seen, default=PREFILL_S) >= 0.9 * PREFILL_S
    ratio = believed["early"] / believed["control"]
    figure("prefill believed where something comes early, beside a control", ratio, ".8 to 1.25")
    assert 0.5 < ratio < 2.0


async def test_streams_left_open_after_their_end_are_no_load(gateway, http, figure):
    open_ended, other = [await gateway.enter(Early(stays=stays)) for stays in (True, False)]
    gateway.members((open_ended.address, "m"), (other.address, "m"))
    runner = await gateway.picker()
    envoy = await gateway.envoy("gateway")
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
    assert open_ended.served >= 4
