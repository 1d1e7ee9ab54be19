"""Start, shutdown, crash and clock of a simulated endpoint."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from sim_endpoint import Running, events, running

from laar.errors import RequestError, SettingError
from laar_lab.sim.endpoint import EndpointSettings, KvEventSettings, SimulatedEndpoint
from laar_lab.sim.endpoint.driver import EngineDriver, Lost
from laar_lab.sim.engine import Engine, Job, SimulatedEngine, Step, build_engine, load_profile
from support import eventually

LONG = {"prompt": "a", "max_tokens": 20_000, "stream": True}


async def read_all(sim: Running, body: dict[str, object]) -> str:
    return (await sim.http.post("/v1/completions", json=body)).text


async def streaming(sim: Running, body: dict[str, object]) -> asyncio.Task[str]:
    """Start a stream; return a task whose result is the complete stream."""
    task = asyncio.create_task(read_all(sim, body))
    await eventually(lambda: sim.endpoint.serving.driver.engine.load().running == 1)
    return task


# Shutdown.


async def test_a_shutdown_with_a_timeout_lets_streams_end_and_refuses_the_rest() -> None:
    async with running(time_scale=1.0, shutdown_timeout_s=30) as sim:
        task = await streaming(sim, {**LONG, "max_tokens": 60})
        sim.endpoint.shut_down()
        await eventually(lambda: sim.endpoint.serving.draining)
        assert (await sim.http.get("/health")).status_code == 200
        text = await sim.http.post("/v1/completions", json={"prompt": "a"})
        assert text.status_code == 500
        ids = await sim.http.post("/v1/completions", json={"prompt": [1]})
        assert ids.json()["choices"][0] == {
            "index": 0,
            "text": "",
            "logprobs": None,
            "finish_reason": "abort",
        }
        stream = await sim.http.post("/v1/completions", json={"prompt": [1], "stream": True})
        assert (stream.status_code, events(stream.text)) == (200, ["[DONE]"])
        *_, last, done = events(await task)
        assert (last["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
        await sim.endpoint.wait()


# Crash.


async def test_an_out_of_memory_crash_loses_streams_and_cache_and_counters() -> None:
    async with running(time_scale=0.05) as sim:
        prompt = {"prompt": "b" * 600, "max_tokens": 1}
        for _ in "ab":
            await sim.http.post("/v1/completions", json=prompt)
        assert await sim.metric("vllm:prefix_cache_hits_total") > 0
        task = await streaming(sim, LONG)
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await sim.http.post("/v1/completions", json=prompt, headers={"x-sim-fault": "oom:0.3"})
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await task
        with pytest.raises(httpx.ConnectError):
            await sim.http.get("/health")

        async def back() -> bool:
            try:
                return (await sim.http.get("/health")).status_code == 200
            except httpx.ConnectError:
                return False

        await eventually(back)
        assert await sim.metric("vllm:request_success_total") == 0
        again = (await sim.http.post("/v1/completions", json=prompt)).json()
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_an_internal_error_of_the_engine_ends_the_endpoint() -> None:
    """Otherwise the endpoint would look healthy and never answer."""

    class Broken(SimulatedEngine):
        def step(self, now: float, until: float | None = None) -> Step | None:
            raise ZeroDivisionError

    endpoint = SimulatedEndpoint(EndpointSettings(model="sim"))
    profile = load_profile("gorgo-main")
    await endpoint.start()
    endpoint.serving.driver.engine = Broken(profile.cost, profile.settings)
    async with httpx.AsyncClient(base_url=endpoint.url) as http:
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await http.post("/v1/completions", json={"prompt": "a"})
    with pytest.raises(ZeroDivisionError):
        await endpoint.wait()


# The process.


async def test_a_port_in_use_and_an_invalid_profile_are_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=str(port)):
            SimulatedEndpoint(EndpointSettings(model="sim", port=port))
        with pytest.raises(SettingError, match="kv_events"):
            SimulatedEndpoint(
                EndpointSettings(
                    model="sim", kv_events=KvEventSettings(endpoint=f"tcp://127.0.0.1:{port}")
                )
            )
    with pytest.raises(SettingError, match="nothing-like-it"):
        SimulatedEndpoint(EndpointSettings(model="sim", profile="nothing-like-it"))
    with pytest.raises(SettingError, match="time_scale"):
        EndpointSettings(model="sim", time_scale=0)


# The driver's clock.


def engine() -> Engine:
    return build_engine(load_profile("gorgo-main"))


def job(name: str, tokens: int = 50, **fields: float) -> Job:
    return Job(
        id=name, arrival_s=fields.get("arrival_s", 0), prompt_tokens=1000, output_tokens=tokens
    )


async def test_a_fast_run_takes_the_same_engine_time_as_a_stepwise_one() -> None:
    """Timer errors must not accumulate. The reference steps the same engine without a clock."""
    reference, now, times = engine(), 0.0, []
    reference.submit(job("a"))
    while (step := reference.step(now)) is not None:
        now += step.duration_s
        times += [now] * sum(progress.tokens for progress in step.progress)
    driver = EngineDriver(engine, time_scale=0.02)
    task = asyncio.create_task(driver.run())
    flight = driver.submit(job("a"))
    while not flight.finished:
        await flight.more(flight.tokens)
    task.cancel()
    assert flight.tokens == 50
    assert (flight.first_s - flight.started_s) / 0.02 == pytest.approx(times[0], rel=1e-3)
    assert (flight.updated_s - flight.first_s) / 0.02 == pytest.approx(
        times[-1] - times[0], rel=1e-3
    )


async def test_lost_or_refused_jobs_are_reported() -> None:
    driver = EngineDriver(engine, time_scale=1.0)
    task = asyncio.create_task(driver.run())
    flight = driver.submit(job("a", 5000))
    with pytest.raises(RequestError):
        driver.submit(job("a"))
    before = driver.engine
    driver.restart()
    await flight.more(0)
    assert flight.lost is Lost.CRASH
    assert driver.engine is not before
    await driver.emptied()
    task.cancel()
