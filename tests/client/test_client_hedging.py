"""Hedging: when it pays, how the pair runs, and that nothing is left under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import ClientSession, web
from hypothesis import given
from hypothesis import strategies as st

from laar.client import Hedge, Outcome, until_correct, until_correct_sync
from laar.client.hedging import Advice, read_advice
from laar.client.loop import Also, Answered, Head, Next, Reply, Send, attempts
from laar.client.wire import Completion
from laar.errors import SettingError
from support.scripted_fleet import ScriptedFleet

MESSAGES = [{"role": "user", "content": "what is it?"}]
LOW = "p=0.3; s=2.0; next-p=0.5; next-s=2.0; others-s=0.0"
HIGH = "p=0.9; s=2.0; next-p=0.5; next-s=2.0; others-s=0.0"


def right(text: str) -> bool:
    return "42" in text


@pytest.mark.parametrize(
    ("advice", "hedge", "pays"),
    [
        ((0.3, 2, 0.5, 2, 0), Hedge(price=1), True),
        ((0.6, 2, 0.5, 2, 0), Hedge(price=1), False),  # more often in vain than not
        ((0.6, 2, 0.5, 2, 0), Hedge(), True),
        ((0.3, 2, 0.5, 2, 5), Hedge(price=1), False),  # others would wait
        ((0.3, 20, 0.5, 20, 0), Hedge(), False),  # past the budget
        ((0.3, 20, 0.5, 20, 0), Hedge(budget_s=30), True),
        ((0.3, 2, 0.01, 2, 0), Hedge(), False),
        ((0.9, 2, 0.5, 2, 0), Hedge(deadline_s=3), True),  # one after the other is too late
        ((0.9, 2, 0.5, 2, 0), Hedge(deadline_s=5), False),
        ((0.3, 2, 0.5, 2, 0), Hedge(deadline_s=1), False),  # the second is too late as well
    ],
)
def test_a_second_request_has_to_pay(advice: tuple[float, ...], hedge: Hedge, pays: bool) -> None:
    assert hedge.pays(Advice(*advice)) is pays


@given(st.text(max_size=60) | st.sampled_from([LOW, HIGH, LOW.replace("0.3", "nan")]))
def test_any_header_is_read_without_an_error(header: str) -> None:
    advice = read_advice(header)
    assert (advice is not None) == (header in (LOW, HIGH))


@pytest.mark.parametrize("wrong", [{"budget_s": -1}, {"price": float("nan")}, {"deadline_s": -2}])
def test_a_hedge_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        Hedge(**wrong)


def headers(advice: str, model: str, tried: str) -> dict[str, str]:
    return {
        "x-laar-hedge": advice,
        "x-laar-model": model,
        "x-laar-tried-models": tried,
        "x-laar-since": f"since {tried}",
        "x-laar-decision-id": f"d-{model}",
    }


def reply(text: str, model: str, tried: str, status: int = 200) -> Reply:
    return Reply(
        status=status,
        latency_s=1.0,
        headers=headers("", model, tried),
        completion=Completion(text=text, model=model) if status == 200 else None,
    )


def test_both_wrong_answers_count_and_the_third_attempt_knows_both() -> None:
    steps = attempts(MESSAGES, right, hedge=Hedge())
    assert isinstance(next(steps), Send)
    also = steps.send(Head(headers=headers(LOW, "a", "a"), elapsed_s=0.1))
    assert isinstance(also, Also)
    assert also.send.headers == {
        "x-laar-tried-models": "a",
        "x-laar-since": "since a",
        "x-laar-hedge-of": "d-a",
    }
    assert isinstance(steps.send(Answered(reply("no", "b", "a,b"), True, 0.9, 1.0)), Next)
    third = steps.send(Answered(reply("no", "a", "a"), False, 0.9, 1.5))
    assert isinstance(third, Send)
    assert third.headers["x-laar-tried-models"] == "a,b"
    assert third.headers["x-laar-hedge"] == "ask"
    with pytest.raises(StopIteration) as end:
        steps.send(Answered(reply("42", "c", "a,b,c"), False, 0.0, 2.0))
    outcome: Outcome = end.value.value
    assert [(a.model, a.hedged) for a in outcome.attempts] == [
        ("b", True),
        ("a", False),
        ("c", False),
    ]
    assert outcome.ttca_s == 3.5  # the pair ran side by side


def test_the_budget_counts_what_second_requests_ran() -> None:
    steps = attempts(MESSAGES, right, hedge=Hedge(budget_s=3.0))
    next(steps)
    assert isinstance(steps.send(Head(headers=headers(LOW, "a", "a"), elapsed_s=0)), Also)
    steps.send(Answered(reply("no", "b", "a,b"), True, 1.5, 1.5))
    steps.send(Answered(reply("no", "a", "a"), False, 1.5, 1.6))
    step = steps.send(Head(headers=headers(LOW, "c", "a,b,c"), elapsed_s=0))
    assert isinstance(step, Next)


@pytest.mark.parametrize("status", [503, 400])
def test_a_refused_second_request_costs_the_first_nothing(status: int) -> None:
    steps = attempts(MESSAGES, right, hedge=Hedge())
    next(steps)
    steps.send(Head(headers=headers(LOW, "a", "a"), elapsed_s=0))
    refused = Reply(status=status, latency_s=0.1, error="no room")
    assert isinstance(steps.send(Answered(refused, True, 0.1, 0.1)), Next)
    again = steps.send(Answered(reply("no", "a", "a"), False, 0.1, 1.0))
    assert isinstance(again, Send)
    assert again.headers["x-laar-tried-models"] == "a"


class Fleet(ScriptedFleet):
    """Streams its head at once; the first model never ends, the second is right."""

    def __init__(self) -> None:
        super().__init__(lambda number, body: "")
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        self.asked.set()
        hedged = "x-laar-hedge-of" in request.headers
        model, tried = ("b", "a,b") if hedged else ("a", "a")
        response = web.StreamResponse(headers=headers(LOW, model, tried))
        await response.prepare(request)
        if hedged:
            await response.write(
                b'data: {"model": "b", "choices": [{"index": 0, "delta": {"content": "42"}, '
                b'"finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
            )
            return response
        try:
            while True:
                await response.write(b": still thinking\n\n")
                await asyncio.sleep(0.01)
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise


@pytest.fixture
async def fleet() -> Any:
    found = Fleet()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", found.complete)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


@pytest.mark.parametrize("shape", ["aiohttp", "session", "sync"])
async def test_the_first_right_answer_is_taken_and_the_loser_cancelled(
    fleet: Fleet, shape: str
) -> None:
    if shape == "aiohttp":
        outcome = await until_correct(MESSAGES, right, base_url=fleet.url, hedge=Hedge())
    elif shape == "session":
        async with ClientSession() as own:
            outcome = await until_correct(
                MESSAGES, right, base_url=fleet.url, session=own, hedge=Hedge()
            )
    else:
        outcome = await asyncio.to_thread(
            until_correct_sync, MESSAGES, right, base_url=fleet.url, hedge=Hedge()
        )
    assert outcome.correct
    assert [(a.model, a.hedged) for a in outcome.attempts] == [("b", True)]
    await asyncio.wait_for(fleet.left.wait(), 10)
    assert [h.get("x-laar-hedge-of") for h in fleet.headers] == [None, "d-a"]


async def test_a_cancelled_loop_leaves_nothing_under_way(fleet: Fleet) -> None:
    hedge = Hedge(budget_s=0.0)
    task = asyncio.create_task(until_correct(MESSAGES, right, base_url=fleet.url, hedge=hedge))
    await asyncio.wait_for(fleet.asked.wait(), 10)
    task.cancel()
    await asyncio.wait_for(fleet.left.wait(), 10)
    with pytest.raises(asyncio.CancelledError):
        await task
