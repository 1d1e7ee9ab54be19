"""Two models at once through a real Envoy: the right answer wins, the loser's endpoint is freed."""

import asyncio

import orjson
import pytest

from laar.client import Hedge, report_outcome, until_correct
from laar.client.hedging import read_advice
from support import Answer, eventually

QUESTION = [{"role": "user", "content": "who?"}]


def sse(text):
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
    event = orjson.dumps({"model": "m", "choices": [choice]})

    async def chunks():
        yield b"data: " + event + b"\n\ndata: [DONE]\n\n"

    return Answer.sse(chunks())


async def endless():
    while True:
        yield b": thinking\n\n"
        await asyncio.sleep(0.02)


async def fleet(gateway, **sections):
    """Two models; whichever is asked first thinks for ever, and the other one is right."""
    upstreams = {name: await gateway.upstream() for name in "ab"}
    gateway.members(*((upstream.address, name) for name, upstream in upstreams.items()))
    order = []

    def answer_of(name):
        def answer():
            order.append(name)
            return Answer.sse(endless()) if len(order) == 1 else sse("42")

        return answer

    for name, upstream in upstreams.items():
        upstream.chat_answer = answer_of(name)
    return upstreams, order, await gateway.picker(**sections)


@pytest.mark.envoy
async def test_the_second_model_is_asked_beside_the_first_and_the_first_is_cancelled(gateway, http):
    upstreams, order, runner = await fleet(gateway)
    outcome = await until_correct(
        QUESTION,
        lambda text: "42" in text,
        base_url=(await gateway.envoy()).url(),
        session=http,
        hedge=Hedge(price=0.0, budget_s=1e6),
        timeout_s=60,
    )
    first, second = order
    assert {first, second} == {"a", "b"}
    assert outcome.correct
    assert [(a.model, a.hedged) for a in outcome.attempts] == [(second, True)]
    table = runner.picker.table
    await eventually(lambda: not table.in_flight.any(), what="the release of both endpoints")
    for upstream in upstreams.values():
        (request,) = upstream.asked
        assert not [name for name in request.headers if name.startswith("x-laar")]
    assert await report_outcome(outcome, gateway.url("admin", ""))
    reported = runner.picker.learning.online.by_model(runner.picker.clock())
    assert set(reported) == {second}  # nothing is known of the one that was cancelled


@pytest.mark.envoy
async def test_advice_is_given_to_those_who_ask(gateway, http):
    upstreams, _, _ = await fleet(gateway)
    for upstream in upstreams.values():
        upstream.chat_answer = lambda: sse("42")
    url = (await gateway.envoy()).url() + "/v1/chat/completions"
    body = {"model": "auto", "messages": QUESTION, "stream": True}

    async def head(**sent):
        headers = {name.replace("_", "-"): value for name, value in sent.items()}
        async with http.post(url, json=body, headers=headers) as answer:
            await answer.read()
            return answer.headers.get("x-laar-hedge")

    advice = read_advice(await head(x_laar_hedge="ask"))
    assert advice is not None
    assert advice.p == pytest.approx(0.5)
    assert advice.s > 0
    assert await head() is None
    assert await head(x_laar_hedge="ask", x_laar_tried_models="a") is None  # no third model


@pytest.mark.envoy
async def test_advice_is_kept_from_clients_that_get_ids_alone(gateway, http):
    upstreams, _, _ = await fleet(gateway, headers={"answers": "ids"})
    for upstream in upstreams.values():
        upstream.chat_answer = lambda: sse("42")
    url = (await gateway.envoy()).url() + "/v1/chat/completions"
    body = {"model": "auto", "messages": QUESTION, "stream": True}
    async with http.post(url, json=body, headers={"x-laar-hedge": "ask"}) as answer:
        assert "x-laar-hedge" not in answer.headers
        assert answer.headers["x-laar-model"] in "ab"
