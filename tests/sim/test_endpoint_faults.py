"""The notation of injected faults, and their effects on clients."""

from __future__ import annotations

import time

import httpx
import pytest
from sim_endpoint import Running, events, running

from laar.errors import SettingError
from laar_lab.sim.endpoint import Fault, FaultKind, parse_fault
from laar_lab.sim.endpoint.echo import echo_text
from support import eventually

PROMPT = {"prompt": "a", "max_tokens": 12}
STREAM = {**PROMPT, "stream": True}


async def ask(sim: Running, fault: str, body: dict[str, object]) -> httpx.Response:
    return await sim.http.post("/v1/completions", json=body, headers={"x-sim-fault": fault})


# The notation.


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hang", Fault(FaultKind.HANG)),
        ("slow", Fault(FaultKind.SLOW, 3)),
        ("reset:5", Fault(FaultKind.RESET, 5)),
        ("503", Fault(FaultKind.STATUS, status=503)),
        ("429:2@0.1", Fault(FaultKind.STATUS, 2, 0.1, status=429)),
        (" oom@0.5 ", Fault(FaultKind.OUT_OF_MEMORY, 1, 0.5)),
        ("401@without=Authorization", Fault(FaultKind.STATUS, status=401, without="authorization")),
        ("500@with=X-Poison", Fault(FaultKind.STATUS, status=500, having="x-poison")),
        (
            "500@0.5,every=2,longer=4000",
            Fault(FaultKind.STATUS, None, 0.5, status=500, every=2, longer_bytes=4000),
        ),
    ],
)
def test_a_fault_is_parsed_into_kind_value_and_share(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text",
    [
        "",
        "explode",
        "hang:3",
        "slow:x",
        "slow:0",
        "slow:nan",
        "503@2",
        "503@0",
        "503@"[:-1] + "@x",
        "399",
        "status",
        "503@every=0",
        "503@nothing=2",
        "503@without=",
        "503@with=",
        "503@",
        "error:200",
        "metrics-huge:0",
    ],
)
def test_an_invalid_fault_is_named_in_the_error(text: str) -> None:
    with pytest.raises(SettingError, match="fault"):
        parse_fault(text)


# The effects on clients.


async def test_statuses_come_with_and_without_retry_after() -> None:
    async with running() as sim:
        for fault, status, after in [("429", 429, None), ("429:7", 429, "7"), ("503:2", 503, "2")]:
            answer = await ask(sim, fault, STREAM)
            assert answer.status_code == answer.json()["error"]["code"] == status
            assert answer.headers.get("retry-after") == after
        assert (await ask(sim, "nonsense", PROMPT)).status_code == 400


async def test_a_full_queue_gives_a_503_but_a_200_on_a_stream() -> None:
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


async def test_a_reset_stream_ends_after_some_text() -> None:
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


@pytest.mark.parametrize("stream", [False, True])
async def test_useless_answers_are_sent_immediately_with_status_200(stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9, "stream": stream}
    kind = "text/event-stream" if stream else "application/json"
    async with running(time_scale=100.0, echo=True) as sim:  # a normal answer would take minutes
        for fault, media_type, in_body, not_in_body in (
            ("html", "text/html", "<!doctype html>", '"choices"'),
            ("empty", kind, '"content":""', "sim<"),
            ("foreign-model", kind, '"model":"another-model"', '"model":"sim"'),
        ):
            answer = await sim.http.post(
                "/v1/chat/completions", json=body, headers={"x-sim-fault": fault}
            )
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(media_type)
            assert in_body in answer.text
            assert not_in_body not in answer.text


async def test_a_start_option_affects_every_request_without_a_header() -> None:
    async with running(faults=(parse_fault("503:4"),), allow_fault_header=False) as sim:
        answer = await sim.http.post("/v1/chat/completions", json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "4")
        assert (await sim.http.get("/health")).status_code == 200


async def test_faults_cannot_be_set_unless_enabled() -> None:
    async with running(allow_fault_header=False) as sim:
        assert (await sim.http.put("/sim/faults", json={"faults": []})).status_code == 404
    async with running() as sim:
        for wrong in ({"faults": ["explode"]}, {}, [1], {"faults": 7}, {"faults": [None]}):
            assert (await sim.http.put("/sim/faults", json=wrong)).status_code == 400
        for wrong in ({"seconds": -1}, {"seconds": "x"}, {}, [1]):
            assert (await sim.http.post("/sim/outage", json=wrong)).status_code == 400


async def test_an_error_in_a_200_is_the_first_event_or_the_whole_body() -> None:
    async with running() as sim:
        stream = await ask(sim, "error:502", STREAM)
        error, done = events(stream.text)
        assert (stream.status_code, error["error"]["code"], done) == (200, 502, "[DONE]")
        plain = await ask(sim, "error:502", PROMPT)
        assert (plain.status_code, plain.json()["error"]["code"]) == (200, 502)


@pytest.mark.parametrize("body", [PROMPT, STREAM])
async def test_a_cut_body_ends_cleanly_but_early(body: dict[str, object]) -> None:
    async with running(time_scale=0.05) as sim:
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(sim, "cut:2", body)


@pytest.mark.parametrize(
    ("fault", "body", "has_head"),
    [
        ("hang", STREAM, True),
        ("hang", PROMPT, False),
        ("mute", STREAM, False),
        ("stall:2", STREAM, True),
        ("stall:2", PROMPT, True),
    ],
)
async def test_a_hang_may_occur_with_and_without_headers(
    fault: str, body: dict[str, object], has_head: bool
) -> None:
    got_head = False
    async with running() as sim:
        headers = {"x-sim-fault": fault}

        async def read() -> None:
            nonlocal got_head
            async with sim.http.stream(
                "POST", "/v1/completions", json=body, headers=headers, timeout=0.5
            ) as stream:
                got_head = True
                await stream.aread()

        with pytest.raises(httpx.ReadTimeout):
            await read()
        assert got_head is has_head
        await eventually(lambda: sim.endpoint.serving.active == 0)


async def test_an_endpoint_can_be_slowed_down_and_restored_at_runtime() -> None:
    async with running(time_scale=0.05) as sim:
        seconds = []
        for faults in ([], ["slow:10"], []):
            await sim.http.put("/sim/faults", json={"faults": faults})
            before = await sim.metric("vllm:e2e_request_latency_seconds_sum")
            await sim.http.post("/v1/completions", json=PROMPT)
            after = await sim.metric("vllm:e2e_request_latency_seconds_sum")
            seconds.append(after - before)
        assert seconds[1] > 4 * seconds[0]
        assert seconds[1] > 4 * seconds[2]


@pytest.mark.parametrize("forget", [True, False])
async def test_an_outage_refuses_connections_and_may_lose_the_cache(forget: bool) -> None:
    async with running() as sim:
        await sim.http.post("/v1/completions", json=PROMPT)
        await sim.http.post("/sim/outage", json={"seconds": 0.3, "forget": forget})

        async def is_up() -> bool:
            try:
                return (await sim.http.get("/health")).status_code == 200
            except httpx.TransportError:
                return False

        async def is_down() -> bool:
            return not await is_up()

        await eventually(is_down)
        await eventually(is_up)
        assert await sim.metric("vllm:request_success_total") == (0 if forget else 1)


async def test_the_metrics_page_can_be_falsified() -> None:
    async with running() as sim:

        async def page(*faults: str) -> httpx.Response:
            await sim.http.put("/sim/faults", json={"faults": list(faults)})
            await sim.http.post("/v1/completions", json=PROMPT)
            return await sim.http.get("/metrics")

        async def successes() -> float:
            return await sim.metric("vllm:request_success_total")

        true = await page()
        await page("metrics-frozen")
        assert await successes() == 1
        nan = await page("metrics-nan")
        assert "vllm:num_requests_running" in nan.text
        assert {line.split()[-1] for line in nan.text.splitlines() if line[0] != "#"} == {"NaN"}
        assert len((await page("metrics-huge:2")).content) >= 2 * 2**20
        assert (await page("metrics-type")).headers["content-type"].startswith("text/html")
        assert (await page("metrics-status:503")).status_code == 503
        began = time.monotonic()
        await page("metrics-slow:0.3")
        assert time.monotonic() - began >= 0.3
        assert (await page()).headers["content-type"] == true.headers["content-type"]
        assert await successes() == 8


@pytest.mark.parametrize("stream", [True, False])
async def test_an_echo_contains_the_model_the_requested_name_and_the_question(stream: bool) -> None:
    async with running(echo=True, served_names=("sim", "alias")) as sim:
        body = {
            "model": "alias",
            "messages": [{"role": "user", "content": "What is this?"}],
            "max_tokens": 30,
            "stream": stream,
        }
        answer = await sim.http.post("/v1/chat/completions", json=body)
        if stream:
            choices = [e["choices"][0] for e in events(answer.text)[:-1]]
            text = "".join(choice["delta"].get("content") or "" for choice in choices)
        else:
            text = answer.json()["choices"][0]["message"]["content"]
        expected = echo_text(model="sim", asked="alias", question="What is this?", tokens=30)
        assert text == expected
        assert text.startswith("sim<alias|")
