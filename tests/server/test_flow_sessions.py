"""Sessions that fit in no cache, with a real Envoy: held, admitted, explained, forgotten."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import chain, repeat

import orjson
import pytest

from laar.server.admin.explain import explain, read_request
from support import Answer, eventually, metric

pytestmark = pytest.mark.envoy

TOKENS = 7_000
CACHE = (
    b'vllm:cache_config_info{num_gpu_blocks="640",block_size="16"} 1\n'
    b"vllm:prompt_tokens_total 5000\n"
)
"""A cache of 10,240 tokens, which fits the context of one session."""

WAITING = 'laar_flow_sessions{state="waiting"}'


def chat(session):
    text = f"{session} " * (4 * TOKENS // (len(session) + 1))
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


class Full:
    """An endpoint whose cache is full until `release`, with a turn of session `one` in flight."""

    def __init__(self, gateway, http, shape, share=None, beside=None, **flow):
        self.gateway, self.http, self.shape, self.beside = gateway, http, shape, beside
        self.sections = {"flow": flow, "share": share or {}}
        self.release = asyncio.Event()
        self.held_ms = {}
        self.stack = AsyncExitStack()

    async def __aenter__(self):
        gateway = self.gateway
        self.upstream = await gateway.upstream()
        self.upstream.default_answer = Answer(body=CACHE)
        gateway.members((self.upstream.address, "m"))
        self.runner = await gateway.picker(**self.sections)
        self.envoy = await gateway.envoy(self.shape)
        table = self.runner.picker.table
        await eventually(lambda: table.cache_tokens() == 10_240, what="the size of the cache")
        if self.beside is not None:
            await self.beside(self)

        async def answer():
            await self.release.wait()
            yield b"{}"

        answers = chain([Answer(chunks=answer())], repeat(Answer()))
        self.upstream.chat_answer = lambda: next(answers)
        self.first = asyncio.create_task(self.ask("one"))
        await eventually(
            lambda: bool(table.in_flight.sum() == 1), what="the first turn to be in flight"
        )
        return self

    async def __aexit__(self, *_failure):
        self.release.set()
        await asyncio.gather(self.first, return_exceptions=True)
        await self.stack.aclose()

    async def ask(self, session):
        url, named = self.envoy.url() + "/v1/chat/completions", {"x-laar-session": session}
        async with self.http.post(url, json=chat(session), headers=named) as answer:
            await answer.read()
            self.held_ms[session] = float(answer.headers.get("x-laar-held-ms", 0))
            return answer.status

    async def hold(self, session):
        """Send a turn that has to wait; return its task."""
        before = metric(self.runner, WAITING)
        task = asyncio.create_task(self.ask(session))
        await eventually(
            lambda: metric(self.runner, WAITING) == before + 1, what=f"{session} to wait"
        )
        return task


@pytest.mark.parametrize("by_load", [False, True])
@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_a_session_without_room_is_held_and_then_admitted(gateway, http, shape, by_load):
    async with Full(gateway, http, shape, enabled=by_load) as full:
        two = await full.hold("two")
        assert 0 < metric(full.runner, "laar_flow_missing_endpoints") <= 1
        full.release.set()
        assert await full.first == 200
        assert await two == 200
        assert full.held_ms["two"] > full.held_ms["one"] == 0
        assert metric(full.runner, WAITING) == 0
        assert not full.runner.picker.admission.queue.sheds


async def test_an_explanation_shows_the_price_of_room_and_who_waits(gateway, http):
    async with Full(gateway, http, "standalone") as full:
        two = await full.hold("two")
        picker, headers = full.runner.picker, {"x-laar-session": "six"}
        shown = explain(picker, read_request(picker, orjson.dumps(chat("six")), headers))
        sessions = shown["sessions"]
        assert [each["session"] for each in sessions["inside"]] == ["one"]
        assert [each["session"] for each in sessions["waiting"]] == ["two"]
        assert sessions["price"] is None  # as a turn is in flight
        assert not sessions["has_place"]
        async with http.get(gateway.url("admin", "/sessions")) as answer:
            card = await answer.json()
        assert card["counts"] == {"placed": 1, "waiting": 1}
        assert [each["session"] for each in card["waiting"]] == ["two"]
        limit_s = metric(full.runner, 'laar_flow_hold_seconds{of="limit"}')
        assert 0 < metric(full.runner, 'laar_flow_hold_seconds{of="now"}') < limit_s
        assert card["hold_s"]["limit"] == card["waiting"][0]["longest_s"] == limit_s
        async with http.get(gateway.url("admin", "/fleet")) as answer:
            assert (await answer.json())["about"]["waiting_turns"] == 1
        full.release.set()
        assert await two == 200
