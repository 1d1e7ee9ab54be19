"""Faults: how they are written, and what a client sees of each."""

from __future__ import annotations

import asyncio
import random
import time

import httpx
import pytest
from sim_endpoint import Running, events, running

from laar.errors import SettingError
from laar.measuring.kv_lookup import queries
from laar.sim.answers import AccuracySurface
from laar.sim.endpoint import Fault, FaultKind, parse_fault
from laar.sim.endpoint.faults import draw_fault, slow_factor, unhealthy
from support import eventually

PROMPT = {"prompt": "a", "max_tokens": 12}
STREAM = {**PROMPT, "stream": True}


async def ask(sim: Running, fault: str, body: dict[str, object]) -> httpx.Response:
    return await sim.http.post("/v1/completions", json=body, headers={"x-sim-fault": fault})


# How they are written.


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hang", Fault(FaultKind.HANG)),
        ("slow", Fault(FaultKind.SLOW, 3)),
        ("reset:5", Fault(FaultKind.RESET, 5)),
        ("503", Fault(FaultKind.UNAVAILABLE)),
        ("429:2@0.1", Fault(FaultKind.TOO_MANY, 2, 0.1)),
        (" oom@0.5 ", Fault(FaultKind.OUT_OF_MEMORY, 1, 0.5)),
    ],
)
def test_a_fault_is_a_kind_a_value_and_a_share(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text",
    ["", "explode", "hang:3", "slow:x", "slow:0", "slow:nan", "503@2", "503@0", "503@"[:-1] + "@x"],
)
def test_a_fault_that_cannot_be_is_named_in_the_error(text: str) -> None:
    with pytest.raises(SettingError, match="fault"):
        parse_fault(text)


def test_the_share_of_requests_that_a_start_option_hits() -> None:
    rng = random.Random(1)
    faults = [parse_fault("slow:2"), parse_fault("503@0.25"), parse_fault("hang@0.5")]
    drawn = [draw_fault(faults, rng) for _ in range(4000)]
    refused = sum(fault is faults[1] for fault in drawn) / 4000
    hung = sum(fault is faults[2] for fault in drawn) / 4000
    # Binomial: 4 standard deviations are below 0.032.
    assert refused == pytest.approx(0.25, abs=0.03)
    assert hung == pytest.approx(0.75 * 0.5, abs=0.032)
    assert slow_factor(faults) == 2


def test_flapping_alternates_from_a_good_period() -> None:
    faults = [parse_fault("flap:10")]
    assert [unhealthy(faults, at) for at in (0, 9.9, 10, 19.9, 20)] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert not unhealthy([parse_fault("hang")], 15)


# What a client sees.


async def test_statuses_come_with_and_without_retry_after() -> None:
    async with running() as sim:
        for fault, status, after in [("429", 429, None), ("429:7", 429, "7"), ("503:2", 503, "2")]:
            answer = await ask(sim, fault, STREAM)
            assert answer.status_code == answer.json()["error"]["code"] == status
            assert answer.headers.get("retry-after") == after
        assert (await ask(sim, "nonsense", PROMPT)).status_code == 400


async def test_the_header_is_ignored_unless_the_endpoint_allows_it() -> None:
    async with running(allow_fault_header=False) as sim:
        assert (await ask(sim, "503", PROMPT)).status_code == 200


async def test_a_full_queue_is_a_503_but_a_200_on_a_stream() -> None:
    async with running() as sim:
        plain = await ask(sim, "full", PROMPT)
        assert plain.status_code == 503
        assert "retry-after" not in plain.headers
        stream = await ask(sim, "full", STREAM)
        assert stream.status_code == 200
        error, done = events(stream.text)
        assert error["error"]["code"] == 503
        assert done == "[DONE]"
        assert await sim.metric("vllm:admission_rejections_total") == 2


async def test_a_queue_that_really_is_full_says_the_same() -> None:
    async with running(time_scale=1.0, max_waiting=1, num_blocks=64) as sim:
        body = {"prompt": "a" * 5000, "max_tokens": 150}
        async with asyncio.TaskGroup() as group:
            engine = sim.endpoint.serving.driver.engine
            group.create_task(sim.http.post("/v1/completions", json=body))
            await eventually(lambda: engine.load().running == 1)
            group.create_task(sim.http.post("/v1/completions", json=body))
            await eventually(lambda: engine.load().waiting == 1)
            plain = await sim.http.post("/v1/completions", json=PROMPT)
            stream = await sim.http.post("/v1/completions", json=STREAM)
            assert plain.status_code == 503
            assert stream.status_code == 200
            assert events(stream.text)[0]["error"]["code"] == 503
            # Let the two go: their answers are not what this is about.
            await sim.endpoint.stop()


async def test_a_refused_request_gets_no_byte() -> None:
    async with running() as sim:
        for body in (PROMPT, STREAM):
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await ask(sim, "refuse", body)


async def test_a_reset_stream_breaks_off_after_some_text() -> None:
    async with running(time_scale=0.2) as sim:
        got = b""

        async def read() -> None:
            nonlocal got
            headers = {"x-sim-fault": "reset:2"}
            async with sim.http.stream(
                "POST", "/v1/completions", json=STREAM, headers=headers
            ) as stream:
                assert stream.status_code == 200
                async for chunk in stream.aiter_bytes():
                    got += chunk

        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await read()
        text = "".join(chunk["choices"][0]["text"] for chunk in events(got.decode()))
        assert 2 * 6 <= len(text) < 12 * 6
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await ask(sim, "reset", PROMPT)
        await eventually(lambda: sim.endpoint.serving.driver.engine.load().running == 0)


async def test_a_hung_stream_has_a_head_and_a_hung_request_nothing() -> None:
    async with running() as sim:
        headers = {"x-sim-fault": "hang"}
        async with sim.http.stream("POST", "/v1/completions", json=STREAM, headers=headers) as hung:
            assert hung.status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            await sim.http.post("/v1/completions", json=PROMPT, headers=headers, timeout=0.2)
        await eventually(lambda: sim.endpoint.serving.active == 0)


async def test_a_slow_request_takes_that_many_times_longer() -> None:
    async with running(time_scale=0.3) as sim:
        for body in (PROMPT, STREAM):
            before = await sim.metric("vllm:e2e_request_latency_seconds_sum")
            began = time.monotonic()
            assert (await ask(sim, "slow:6", body)).status_code == 200
            took = time.monotonic() - began
            engine_s = await sim.metric("vllm:e2e_request_latency_seconds_sum") - before
            assert engine_s > 0
            assert took >= 6 * engine_s


async def test_a_slow_endpoint_reports_longer_times() -> None:
    means = []
    for faults in ((), (parse_fault("slow:8"),)):
        async with running(time_scale=0.1, faults=faults) as sim:
            await sim.http.post("/v1/completions", json=PROMPT)
            means.append(await sim.metric("vllm:e2e_request_latency_seconds_sum"))
    assert means[1] / means[0] == pytest.approx(8, rel=0.3)


async def test_a_wrong_answer_looks_like_any_other() -> None:
    surface = AccuracySurface.load()
    asked = next(
        query
        for query in queries(lengths_tokens=(4096,), languages=("en",))
        if surface.is_correct("phi3-mini", query.key, "en", 4096)
    )
    messages = [{"role": "user", "content": asked.prompt}]
    async with running(fleet_model="phi3-mini") as sim:
        answers = [
            (await sim.http.post(path, json={"messages": messages}, headers=headers)).json()
            for path, headers in [
                ("/v1/chat/completions", {}),
                ("/v1/chat/completions", {"x-sim-fault": "wrong"}),
            ]
        ]
    right, wrong = (answer["choices"][0] for answer in answers)
    assert asked.answer in right["message"]["content"]
    assert asked.answer not in wrong["message"]["content"]
    assert right["finish_reason"] == wrong["finish_reason"] == "stop"
    assert answers[0]["usage"]["completion_tokens"] == answers[1]["usage"]["completion_tokens"]


async def test_a_flapping_endpoint_is_well_and_ill_in_turn() -> None:
    async with running(faults=(parse_fault("flap:0.3"),)) as sim:
        assert (await sim.http.get("/health")).status_code == 200

        async def health(status: int) -> bool:
            return (await sim.http.get("/health")).status_code == status

        await eventually(lambda: health(503))
        assert (await sim.http.get("/v1/models")).status_code == 200
        await eventually(lambda: health(200))


async def test_a_start_option_hits_every_request_without_a_header() -> None:
    async with running(faults=(parse_fault("503:4"),), allow_fault_header=False) as sim:
        answer = await sim.http.post("/v1/chat/completions", json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "4")
        assert (await sim.http.get("/health")).status_code == 200
