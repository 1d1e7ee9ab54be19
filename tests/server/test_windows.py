"""Replicas of one name with different context windows, behind a real Envoy."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from support import Answer, eventually
from support.clients import chat, post

pytestmark = pytest.mark.envoy

SMALL, LARGE = 4096, 32_768


def answers_like_vllm(upstream, window):
    """Let an upstream refuse what its window has no room for."""

    def answer():
        body = orjson.loads(upstream.requests[-1].body)
        tokens = len(body["messages"][0]["content"].split())
        if tokens + body["max_tokens"] > window:
            said = f"This model's maximum context length is {window} tokens. Please reduce it."
            error = {"message": said, "type": "BadRequestError", "code": 400}
            return Answer(status=400, body=orjson.dumps({"error": error}))
        return Answer()

    upstream.chat_answer = answer


async def replicas(gateway, shape, *, known):
    small, large = await gateway.upstream(), await gateway.upstream()
    for upstream, window in ((small, SMALL), (large, LARGE)):
        answers_like_vllm(upstream, window)
        if known:
            upstream.models = [{"id": "m", "max_model_len": window}]
    gateway.members((small.address, "m"), (large.address, "m"))
    runner = await gateway.picker()
    table = runner.picker.table
    if known:
        both = {SMALL, LARGE}
        await eventually(
            lambda: set(table.window_tokens[table.active].tolist()) == both, what="the windows"
        )
    return small, await gateway.envoy(shape)


@pytest.mark.parametrize("is_cached", [False, True])
async def test_a_limit_that_only_the_larger_window_has_room_for_is_never_refused(
    gateway, http, figure, is_cached
):
    small, envoy = await replicas(gateway, "standalone", known=True)
    text = "word " * 550
    while is_cached and not small.asked:  # the last text remains in the small engine's cache
        text = f"{len(text)} {text}"
        assert (await post(http, envoy, chat(text, max_tokens=10))).status == 200
    asked = len(small.asked)
    bodies = [chat(text if is_cached else f"{at} {text}", max_tokens=8000) for at in range(200)]
    statuses = []
    for at in range(0, len(bodies), 20):
        answers = await asyncio.gather(*(post(http, envoy, b) for b in bodies[at : at + 20]))
        statuses += [answer.status for answer in answers]
    figure("refused of 200 that only the larger window fits", 200 - statuses.count(200), "0")
    assert set(statuses) == {200}
    assert len(small.asked) == asked
    listed = orjson.loads(await (await http.get(f"{envoy.url()}/v1/models")).read())["data"]
    assert {entry["id"]: entry["max_model_len"] for entry in listed} == {"m": LARGE, "auto": LARGE}


@pytest.mark.parametrize("shape", ["standalone", "gateway", "full-duplex"])
async def test_a_conversation_that_was_refused_as_too_long_goes_elsewhere(gateway, http, shape):
    small, envoy = await replicas(gateway, shape, known=False)
    statuses = []
    for at in range(12):
        body = chat("word " * (550 + at), max_tokens=8000)
        statuses.append((await post(http, envoy, body)).status)
        assert at < 9 or statuses[-3:] == [200, 200, 200]
    assert statuses.count(400) <= 1
    assert len(small.asked) == statuses.count(400)


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_another_models_window_refuses_no_prompt(gateway, http, figure, shape):
    """One of two engines lists a small model as well, which only shares its list."""
    small, large = await gateway.upstream(), await gateway.upstream()
    small.models = [{"id": "m", "max_model_len": LARGE}, {"id": "bge", "max_model_len": 512}]
    large.models = [{"id": "m", "max_model_len": SMALL}]
    answers_like_vllm(small, LARGE)
    answers_like_vllm(large, SMALL)
    gateway.members((small.address, "m"), (large.address, "m"))
    runner, envoy = await gateway.picker(), await gateway.envoy(shape)
    table = runner.picker.table
    await eventually(lambda: set(table.window_tokens[table.active].tolist()) == {SMALL, LARGE})
    statuses = [
        (await post(http, envoy, chat("word " * (550 + at), max_tokens=8000))).status
        for at in range(20)
    ]
    figure("refused of 20 that fit, by another model's window", 20 - statuses.count(200), "0")
    assert set(statuses) == {200}
    listed = orjson.loads(await (await http.get(f"{envoy.url()}/v1/models")).read())["data"]
    assert {entry["max_model_len"] for entry in listed} == {LARGE}
