"""until_correct over real HTTP, with its own session or a given one, and without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from typing import Any

import orjson
import pytest
from aiohttp import ClientSession, web

from laar.client import (
    Outcome,
    until_correct,
    until_correct_sync,
)
from laar.client.until import MAX_WAIT_S
from laar.client.wire import Deltas
from laar.errors import SettingError
from support import eventually
from support.scripted_fleet import ScriptedFleet, completion

MESSAGES = [{"role": "user", "content": "what is it?"}]


def picker(models: list[str], right: str | None) -> Any:
    """Return a script that acts as a picker: the next model answers; headers list those tried."""

    def script(number: int, body: dict[str, Any]) -> web.Response:
        name = models[number % len(models)]
        tried = ",".join(models[: number + 1])
        headers = {
            "x-laar-model": name,
            "x-laar-endpoint": f"{name}:8000",
            "x-laar-decision-id": f"d{number}",
            "x-laar-tried-models": tried,
        }
        if number + 1 >= len(models):
            headers["x-laar-exhausted"] = "true"
        return completion("the value is 42" if name == right else "no idea", headers)

    return script


async def ask(shape: str, fleet: ScriptedFleet, **options: Any) -> Outcome:
    def check(text: str) -> bool:
        return "42" in text

    if shape == "aiohttp":
        return await until_correct(MESSAGES, check, base_url=fleet.url, **options)
    if shape == "session":
        async with ClientSession() as session:
            return await until_correct(
                MESSAGES, check, base_url=f"{fleet.url}/v1/", session=session, **options
            )
    return await asyncio.to_thread(
        until_correct_sync, MESSAGES, check, base_url=fleet.url, **options
    )


shapes = pytest.mark.parametrize("shape", ["aiohttp", "session", "sync"])


@shapes
@pytest.mark.parametrize("stream", [False, True])
async def test_retries_send_the_returned_list_of_models_until_correct(
    serve: Any, shape: str, stream: bool
) -> None:
    fleet = await serve(picker(["a", "b", "c"], right="b"))
    outcome = await ask(shape, fleet, stream=stream, headers={"x-laar-task": "qa"})

    assert outcome.correct
    assert outcome.answer == "the value is 42"
    assert not outcome.censored
    assert not outcome.exhausted
    assert [(a.model, a.endpoint, a.decision_id, a.correct) for a in outcome.attempts] == [
        ("a", "a:8000", "d0", False),
        ("b", "b:8000", "d1", True),
    ]
    assert [h.get("x-laar-tried-models") for h in fleet.headers] == [None, "a"]
    assert [h["x-laar-task"] for h in fleet.headers] == ["qa", "qa"]
    assert all(b["temperature"] == 0 and b["model"] == "auto" for b in fleet.bodies)
    assert outcome.ttca_s == pytest.approx(sum(a.latency_s for a in outcome.attempts))
    assert [a.prompt_tokens for a in outcome.attempts] == [7, 7]
    assert all((a.ttft_s is not None) == stream for a in outcome.attempts)


@shapes
async def test_retries_stop_when_every_model_has_been_tried(serve: Any, shape: str) -> None:
    fleet = await serve(picker(["a", "b"], right=None))
    outcome = await ask(shape, fleet)
    assert (outcome.correct, outcome.censored, outcome.exhausted) == (False, True, True)
    assert len(outcome.attempts) == 2
    assert outcome.answer == "no idea"


@shapes
async def test_a_refused_request_is_retried_after_the_requested_pause(
    serve: Any, shape: str
) -> None:
    def script(number: int, body: dict[str, Any]) -> web.Response | str:
        if number == 0:
            return web.Response(status=429, headers={"retry-after": "0"}, text="slow down")
        return "42"

    outcome = await ask(shape, await serve(script))
    assert outcome.correct
    assert [a.status for a in outcome.attempts] == [429, 200]
    assert "slow down" in (outcome.attempts[0].error or "")


@shapes
async def test_an_error_that_no_retry_can_fix_is_returned(serve: Any, shape: str) -> None:
    fleet = await serve(lambda number, body: web.Response(status=400, text="no such model"))
    outcome = await ask(shape, fleet)
    assert [a.status for a in outcome.attempts] == [400]
    assert (outcome.correct, outcome.censored, outcome.answer) == (False, True, None)


@shapes
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body", ["", "{", "[]", '{"choices": []}', '{"choices": [{"message": 1}]}', "data: {}\n\n"]
)
async def test_an_invalid_answer_is_a_failed_attempt(
    serve: Any, shape: str, stream: bool, body: str
) -> None:
    fleet = await serve(lambda number, sent: _Raw(body))
    outcome = await ask(shape, fleet, max_attempts=1, stream=stream)
    assert [a.status for a in outcome.attempts] == [0]
    assert outcome.attempts[0].error
    assert outcome.answer is None


class _Raw(web.StreamResponse):
    """Returns a 200 with any bytes, even to a streaming request."""

    def __init__(self, text: str) -> None:
        super().__init__(headers={"content-type": "application/json"})
        self._text = text

    async def prepare(self, request: web.BaseRequest) -> Any:
        writer = await super().prepare(request)
        await self.write(self._text.encode())
        await self.write_eof()
        return writer


@shapes
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [200, 503])
async def test_a_truncated_answer_is_a_failed_attempt(
    serve: Any, shape: str, stream: bool, status: int
) -> None:
    fleet = await serve(lambda number, sent: "42" if number else _BrokenOff(status))
    outcome = await ask(shape, fleet, stream=stream)
    assert [a.correct for a in outcome.attempts] == [False, True]
    assert outcome.attempts[0].status in (0, status)
    assert outcome.attempts[0].status != 200
    assert outcome.attempts[0].error


class _BrokenOff(web.StreamResponse):
    """Begins a stream, and closes the connection."""

    def __init__(self, status: int) -> None:
        super().__init__(status=status, headers={"content-type": "text/event-stream"})

    async def prepare(self, request: web.BaseRequest) -> Any:
        writer = await super().prepare(request)
        await self.write(b'data: {"choices": [{"index": 0, "delta": {"content": "4"}}]}\n\n')
        assert request.transport is not None
        request.transport.close()
        return writer


@shapes
async def test_a_missing_server_is_a_failed_attempt(shape: str) -> None:
    nowhere = ScriptedFleet(lambda number, body: "", url="http://127.0.0.1:9")
    outcome = await ask(shape, nowhere, max_attempts=1)
    assert [a.status for a in outcome.attempts] == [0]


async def test_the_sync_function_works_inside_a_running_event_loop() -> None:
    """Notebooks, for example, run an event loop."""
    url = "http://127.0.0.1:9"
    outcome = until_correct_sync(MESSAGES, bool, base_url=url, max_attempts=1)
    assert [a.status for a in outcome.attempts] == [0]


async def test_an_answer_is_wrong_if_its_check_raises(serve: Any) -> None:
    def check(text: str) -> bool:
        return {}[text]  # type: ignore[index]

    fleet = await serve(lambda *_: completion("hm"))
    outcome = await until_correct(MESSAGES, check, base_url=fleet.url, max_attempts=2)
    assert outcome.censored
    assert outcome.ttca_s == sum(attempt.latency_s for attempt in outcome.attempts)
    assert ["KeyError" in (attempt.error or "") for attempt in outcome.attempts] == [True, True]


async def pauses(
    serve: Any, monkeypatch: pytest.MonkeyPatch, asked: str, max_attempts: int
) -> list[float]:
    """Return the pauses before more attempts, in seconds; a fake sleep takes no time."""
    fleet = await serve(lambda *_: web.Response(status=503, headers={"retry-after": asked}))
    real_sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda _s: real_sleep(0))
    outcome = await until_correct(MESSAGES, bool, base_url=fleet.url, max_attempts=max_attempts)
    spent = [attempt.waited_s + attempt.latency_s for attempt in outcome.attempts]
    assert outcome.ttca_s == pytest.approx(sum(spent))
    assert outcome.attempts[0].waited_s == 0.0
    return [attempt.waited_s for attempt in outcome.attempts[1:]]


@pytest.mark.parametrize("asked", ["999999999999", "-1", "soon", "", "٣", "1e9"])
async def test_pauses_are_bounded_whatever_the_endpoint_requests(
    serve: Any, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    waits = await pauses(serve, monkeypatch, asked, 12)
    assert len(waits) == 11
    assert all(0 < wait <= MAX_WAIT_S for wait in waits)


@shapes
@pytest.mark.parametrize("status", [429, 503])
async def test_the_last_model_may_be_asked_again_if_it_gave_no_answer(
    serve: Any, shape: str, status: int
) -> None:
    """For example, it is the only model of a fleet, and was full."""
    exhausted = {"x-laar-model": "m", "x-laar-tried-models": "m", "x-laar-exhausted": "true"}

    def script(number: int, body: dict[str, Any]) -> web.Response:
        if number == 0:
            return web.Response(status=status, headers={"retry-after": "0", **exhausted})
        return completion("42", exhausted)

    outcome = await ask(shape, await serve(script))
    assert [a.status for a in outcome.attempts] == [status, 200]
    assert outcome.correct


@shapes
async def test_an_unstreamed_answer_to_a_streaming_request_is_accepted(
    serve: Any, shape: str
) -> None:
    """Some engines, and caches in front of engines, do not stream."""
    fleet = await serve(lambda *_: _Raw(completion("42").text or ""))
    outcome = await ask(shape, fleet, stream=True, max_attempts=1)
    [attempt] = outcome.attempts
    assert (outcome.correct, attempt.error, attempt.prompt_tokens) == (True, None, 7)


@pytest.mark.parametrize(
    "error",
    [
        b'data: {"object": "error", "message": "out of memory", "code": 500}\n\n',
        b'event: error\ndata: {"message": "out of memory"}\n\n',
    ],
)
@pytest.mark.parametrize("begun", [False, True])
async def test_an_error_before_the_end_of_a_stream_is_not_a_wrong_answer(
    serve: Any, error: bytes, begun: bool
) -> None:
    """If the client reported it as wrong, it would count against the model."""
    text = b'data: {"choices": [{"delta": {"content": "4"}}]}\n\n' if begun else b""
    fleet = await serve(lambda *_: _Stream(text + error + b"data: [DONE]\n\n"))
    outcome = await ask("aiohttp", fleet, stream=True, max_attempts=1)
    [attempt] = outcome.attempts
    assert (attempt.status, outcome.answer) == (0, None)
    assert "out of memory" in (attempt.error or "")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_in_parts_is_joined_to_its_text(serve: Any, stream: bool) -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "41?"}]},
        {"type": "text", "text": "4"},
        {"type": "text", "text": "2"},
    ]
    choice = {"message": {"content": parts}, "delta": {"content": parts}, "finish_reason": "stop"}
    body = orjson.dumps({"choices": [choice]})
    fleet = await serve(
        lambda *_: _Stream(b"data: %s\n\n" % body) if stream else _Raw(body.decode())
    )
    outcome = await ask("aiohttp", fleet, stream=stream, max_attempts=1)
    assert (outcome.answer, outcome.correct) == ("42", True)


def _events(*texts: str) -> bytes:
    """Return a stream as vLLM writes it, with unescaped characters."""
    named = {"id": "chatcmpl-" + 32 * "0", "object": "chat.completion.chunk", "model": "m" * 120}
    deltas: list[dict[str, Any]] = [{"delta": {"content": text}} for text in texts]
    chunks = [*deltas, {"delta": {}, "finish_reason": "stop"}]
    frames = [
        orjson.dumps({**named, "choices": [{"index": 0, "logprobs": None, **chunk}]})
        for chunk in chunks
    ]
    return b"".join(b"data: %s\n\n" % frame for frame in [*frames, b"[DONE]"])


class _Stream(web.StreamResponse):
    """Sends bytes as a stream, with a pause between its parts."""

    def __init__(self, *parts: bytes, pause_s: float = 0.0) -> None:
        super().__init__(headers={"content-type": "text/event-stream"})
        self._parts, self._pause_s = parts, pause_s

    async def prepare(self, request: web.BaseRequest) -> Any:
        writer = await super().prepare(request)
        with contextlib.suppress(ConnectionError):  # after the client has disconnected
            for part in self._parts:
                await self.write(part)
                await asyncio.sleep(self._pause_s)
            await self.write_eof()
        return writer


@shapes
async def test_the_timeout_applies_to_the_whole_stream(serve: Any, shape: str) -> None:
    event = _events("4").partition(b"\n\n")[0] + b"\n\n"
    fleet = await serve(lambda *_: _Stream(*20 * [event], _events(), pause_s=0.1))
    outcome = await ask(shape, fleet, stream=True, max_attempts=1, timeout_s=0.5)
    assert (outcome.answer, outcome.attempts[0].status) == (None, 0)
    assert outcome.attempts[0].error


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_stream_is_read_in_chunks_of_any_size(cut: int) -> None:
    data = _events("a\u2028b", "c").replace(b"\n\n", b"\r\n\r\n")[:-4]  # the last line has no end
    deltas = Deltas()
    for at in range(0, len(data), cut):
        deltas.feed(data[at : at + cut])
    assert deltas.completion().text == "a\u2028bc"


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://localhost:8080", "127.0.0.1:8080/v1"])
def test_an_invalid_base_url_is_rejected_immediately(url: str) -> None:
    """Otherwise the client would try ten times, with two minutes of pauses."""
    with pytest.raises(SettingError, match=r"not a URL; write http://\w"):
        until_correct_sync(MESSAGES, bool, base_url=url)


async def test_an_asynchronous_check_is_rejected(serve: Any) -> None:
    """A coroutine is true, so every answer would be treated as correct."""

    async def check(text: str) -> bool:
        return "42" in text

    fleet = await serve(lambda *_: "no idea")
    for asynchronous in (check, lambda _: asyncio.Future[bool]()):
        with pytest.raises(SettingError, match="the check is asynchronous"):
            await until_correct(MESSAGES, asynchronous, base_url=fleet.url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "written",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
    ],
)
async def test_the_first_token_may_be_reasoning(serve: Any, written: dict[str, Any]) -> None:
    """Reasoning begins after the prefill; the text of the answer comes only after the reasoning."""
    begins = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    events = [begins, {"choices": [{"delta": written}]}]
    parts = [b"data: %s\n\n" % orjson.dumps(event) for event in events]
    fleet = await serve(lambda *_: _Stream(*parts, _events("42"), pause_s=0.5))
    outcome = await ask("aiohttp", fleet, stream=True, max_attempts=1)
    [attempt] = outcome.attempts
    assert (outcome.correct, outcome.answer) == (True, "42")
    assert attempt.ttft_s is not None
    assert attempt.ttft_s > 0.4
    assert attempt.latency_s - attempt.ttft_s > 0.75


def pair(times: dict[str, float], right: str, refusals: list[str]) -> Any:
    """Return a script that answers like a picker of models with these times, in turn."""
    names = list(times)
    sent: list[str] = []

    def script(number: int, body: dict[str, Any]) -> Any:
        if number == 1 and refusals:
            return web.Response(status=409, headers={"x-laar-reason": refusals.pop(0)}, text="no")
        name = names[len(sent)]
        sent.append(name)
        text = "42" if name == right else "no idea"
        of = {"x-laar-model": name, "x-laar-tried-models": ",".join(sent)}
        return Delayed(times[name], completion(text, of))

    return script


@dataclasses.dataclass
class Delayed:
    """A response after some seconds."""

    after_s: float
    answer: web.Response


class Pairs(ScriptedFleet):
    """A scripted fleet that records the requests whose clients went away."""

    gone: list[str]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        made = self.script(len(self.bodies) - 1, self.bodies[-1])
        if isinstance(made, Delayed):
            try:
                await asyncio.sleep(made.after_s)
            except asyncio.CancelledError:
                self.gone.append(made.answer.headers["x-laar-model"])
                raise
            return made.answer
        return made


@pytest.fixture
async def pairs() -> Any:
    runners: list[web.AppRunner] = []

    async def start(script: Any) -> Pairs:
        fleet = Pairs(script)
        fleet.gone = []
        app = web.Application()
        app.router.add_post("/v1/chat/completions", fleet.complete)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        fleet.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return fleet

    yield start
    for runner in runners:
        await runner.cleanup()


@shapes
async def test_of_two_at_once_the_first_correct_answer_counts(pairs: Any, shape: str) -> None:
    fleet = await pairs(pair({"a": 30.0, "b": 0.0}, "b", []))
    outcome = await ask(shape, fleet, at_once=2)
    assert (outcome.correct, [a.model for a in outcome.attempts]) == (True, ["b"])
    first, second = fleet.headers
    assert second["x-laar-companion-of"] == first["x-request-id"]
    assert "x-laar-companion-of" not in first
    assert [h["x-laar-wrong-answer"] for h in fleet.headers] == ["retry", "retry"]
    await eventually(lambda: fleet.gone == ["a"], what="the cancelled request")


async def test_a_wrong_answer_is_followed_by_another_companion(pairs: Any) -> None:
    fleet = await pairs(pair({"a": 30.0, "b": 0.0, "c": 0.0}, "c", []))
    outcome = await ask("aiohttp", fleet, at_once=2)
    assert [(a.model, a.correct) for a in outcome.attempts] == [("b", False), ("c", True)]
    assert fleet.headers[2]["x-laar-companion-of"] == fleet.headers[0]["x-request-id"]
    assert fleet.headers[2]["x-laar-tried-models"] == "b", "the picker knows of a, still asked"


@pytest.mark.parametrize("seed", range(4))
async def test_each_of_two_at_once_counts_also_if_both_ask_one_model(pairs: Any, seed: int) -> None:
    rng, names = random.Random(seed), dict[str, str]()
    fleet = await pairs(None)

    def script(number: int, body: dict[str, Any]) -> Any:
        sent, name = fleet.headers[number], rng.choice("ab")
        first = names.get(sent.get("x-laar-companion-of", ""), "")
        names[sent["x-request-id"]] = name
        tried = ",".join(filter(None, [sent.get("x-laar-tried-models"), first, name]))
        of = {"x-laar-model": name, "x-laar-tried-models": tried}
        return Delayed(rng.uniform(0.1, 0.3), completion("no idea", of))

    fleet.script = script
    outcome = await ask("aiohttp", fleet, at_once=2, max_attempts=7, params={"temperature": 1})
    wrong = [attempt.model for attempt in outcome.attempts]
    tried = [h.get("x-laar-tried-models", "").split(",") for h in fleet.headers]
    assert tried == [[""], [""], *(wrong[:at] for at in range(1, 6))]


async def test_a_refused_companion_is_no_attempt(pairs: Any) -> None:
    fleet = await pairs(pair({"a": 0.3, "b": 0.2, "c": 30.0}, "b", ["not-worth-it"]))
    outcome = await ask("aiohttp", fleet, at_once=2)
    assert [(a.model, a.correct) for a in outcome.attempts] == [("a", False), ("b", True)]
    assert ["x-laar-companion-of" in h for h in fleet.headers] == [False, True, False, True]
    fleet = await pairs(pair({"a": 30.0, "b": 0.0}, "b", ["no-companion"]))
    assert [a.model for a in (await ask("aiohttp", fleet, at_once=2)).attempts] == ["b"]
    assert len(fleet.headers) == 3  # sent again, as the first had not arrived


async def test_no_more_attempts_than_allowed_are_made_at_once(pairs: Any) -> None:
    fleet = await pairs(pair({"a": 0.1, "b": 0.0, "c": 0.0}, "c", []))
    outcome = await ask("aiohttp", fleet, at_once=2, max_attempts=2)
    assert (len(fleet.headers), outcome.correct) == (2, False)
    with pytest.raises(SettingError, match="at_once is 3"):
        await ask("aiohttp", fleet, at_once=3)
