"""Who answered a request to `auto`: the `model` of answers, through a real picker and Envoy."""

from __future__ import annotations

import gzip
from itertools import product

import orjson
import pytest
from aiohttp import web

from support.clients import CHAT
from support.served import ServedEngine

pytestmark = pytest.mark.envoy

TEXT, MESSAGES = {"prompt": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}
ASKED = {
    CHAT: MESSAGES,
    "/v1/completions": TEXT,
    "/v1/messages": {**MESSAGES, "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
}


def answer_of(path, model):
    """Return a whole answer, and the events of a stream."""
    own = {"id": "a-1", "model": model}
    if path == "/v1/messages":
        whole = {**own, "type": "message", "content": [{"type": "text", "text": "hi"}]}
        delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}}
        return whole, [{"type": "message_start", "message": own}, delta, {"type": "message_stop"}]
    if path == "/v1/responses":
        said = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
        whole = {**own, "object": "response", "output": [said]}
        return whole, [
            {"type": "response.created", "response": own},
            {"type": "response.completed", "response": whole},
        ]
    said = {"text": "hi"} if path == "/v1/completions" else {"message": {"content": "hi"}}
    part = {"text": "hi"} if path == "/v1/completions" else {"delta": {"content": "hi"}}
    return {**own, "choices": [said]}, [{**own, "choices": [{"finish_reason": "stop", **part}]}]


class Engine(ServedEngine):
    """Answers with the name under which it was asked, as vLLM and SGLang do."""

    def __init__(self):
        self.compresses = False

    async def _handle(self, request):
        if request.path not in ASKED:
            return web.json_response({"data": [{"id": "big"}]})
        asked = orjson.loads(await request.read())
        body, events = answer_of(request.path, asked["model"])
        raw, kind = orjson.dumps(body), "application/json"
        if asked.get("stream"):
            lines = [*map(orjson.dumps, events), *([b"[DONE]"] if "choices" in body else [])]
            raw, kind = b"".join(b"data: %b\n\n" % line for line in lines), "text/event-stream"
        headers = {"content-type": kind}
        if self.compresses:
            raw, headers["content-encoding"] = gzip.compress(raw), "gzip"
        return web.Response(body=raw, headers=headers)


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("shape", ["standalone", "gateway", "full-duplex"])
async def test_an_answer_says_who_answered_or_has_the_clients_name_if_it_can_be_restored(
    gateway, http, figure, shape, restores
):
    engine = await gateway.enter(Engine())
    gateway.members((engine.address, "big"))
    await gateway.picker(routing={"restore_names": restores})
    url = (await gateway.envoy(shape)).url()
    told = []
    for (path, fields), stream, engine.compresses in product(
        ASKED.items(), (False, True), (False, True)
    ):
        body = {"model": "auto", "stream": stream, **fields}
        async with http.post(f"{url}{path}", json=body) as answer:
            raw = await answer.read()
            assert (answer.status, answer.headers["x-laar-model"]) == (200, "big"), raw
        restored = restores and shape != "standalone" and not engine.compresses
        name, other = (b'"auto"', b'"big"') if restored else (b'"big"', b'"auto"')
        assert name in raw, (path, stream, engine.compresses, raw)
        assert other not in raw, (path, stream, engine.compresses, raw)
        told.append(restored)
    figure(
        "answers to `auto` that name the model that answered", told.count(False), "16, 8 restored"
    )
