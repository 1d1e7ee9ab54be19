from __future__ import annotations

import asyncio
import math
import random
import time
from typing import Any

import pytest
from aiohttp import web

from laar.datalayer import probe
from laar.datalayer.probe import Prober
from laar.fleet.membership import EndpointSpec
from laar.fleet.roundtrip import WINDOW


def spec(address: str) -> EndpointSpec:
    return EndpointSpec(address=address, models=("tiny",))


async def pages(_: web.Request) -> web.Response:
    return web.Response()


def prober(sink: Any, address: str, clock: Any, **options: Any) -> Prober:
    options = {"interval_s": 0.02, **options}
    return Prober(lambda: [spec(address)], sink, clock=clock, rng=random.Random(1), **options)


class Moving:
    """Real time plus an offset: probes continue as usual, but the offset appears in samples."""

    def __init__(self) -> None:
        self.added = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.added


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])  # without and with aiohttp's session
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_a_round_trip_excludes_connection_setup(
    recorder: Any,
    start: Any,
    until: Any,
    serve: Any,
    monkeypatch: pytest.MonkeyPatch,
    keep_alive: bool,
    host: str,
) -> None:
    """The clock gains an hour while connecting, and 1,000 s while answering: only these count."""
    clock = Moving()
    loop = asyncio.get_running_loop()
    connect = loop.create_connection
    connections = 0

    async def slow(*args: Any, **options: Any) -> Any:
        nonlocal connections
        connections += 1
        clock.added += 3600.0
        return await connect(*args, **options)

    async def page(_: web.Request) -> web.Response:
        clock.added += 1000.0
        answer = web.Response()
        if not keep_alive:
            answer.force_close()
        return answer

    monkeypatch.setattr(loop, "create_connection", slow)
    address = await serve(page)
    address = address.replace("127.0.0.1", host)
    start(prober(recorder, address, clock).run())
    await until(lambda: len(recorder.round_trips) >= 3)
    assert connections == 1 if keep_alive else connections >= 3
    for got, rtt_s, _ in recorder.round_trips:
        assert got == address
        assert 1000.0 <= rtt_s < 1100.0


async def test_silence_and_refusal_are_failures_with_a_reason(
    recorder: Any, start: Any, until: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    address = await serve(hang)
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.05)
    start(prober(recorder, address, time.monotonic).run())
    start(prober(recorder, "127.0.0.1:1", time.monotonic).run())
    # A name goes through aiohttp's session.
    start(prober(recorder, "localhost:1", time.monotonic).run())
    await until(lambda: len(recorder.problems) == 3)
    found = {address: rtt_s for address, rtt_s, _ in recorder.round_trips}
    assert found == {address: None, "127.0.0.1:1": math.inf, "localhost:1": math.inf}
    assert "Timeout" in recorder.problems[f"probe {address}"]


@pytest.mark.parametrize("answers", [True, False])
async def test_visits_are_frequent_until_there_is_a_window_of_samples(
    recorder: Any,
    start: Any,
    until: Any,
    serve: Any,
    monkeypatch: pytest.MonkeyPatch,
    answers: bool,
) -> None:
    monkeypatch.setattr(probe, "SOON_S", 0.02)
    address = await serve(pages) if answers else "127.0.0.1:1"
    probes = prober(recorder, address, time.monotonic, interval_s=3600.0)
    start(probes.run())
    await until(lambda: len(recorder.round_trips) >= WINDOW)
    assert (len(recorder.round_trips), probes.interval_s(spec(address))) == (WINDOW, 3600.0)


async def test_the_time_of_a_health_page_is_no_distance(
    recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    """Whichever pages take a second on this clock, as where an engine generates for them."""
    for slow in ({"/health"}, {"/health", "/ping"}, {"/health", "/version"}):
        clock, asked = Moving(), []

        async def page(request: web.Request, clock: Any = clock, asked: Any = asked) -> Any:
            asked.append(request.path)
            clock.added += 1000.0 * (request.path in slow)  # noqa: B023
            return web.Response()

        address = await serve(page)
        start(prober(recorder, address, clock).run())
        await until(lambda: {"/health", "/ping"} <= {*asked[:-1]})  # noqa: B023
        took = [rtt_s for got, rtt_s, _ in recorder.round_trips if got == address]
        assert max(took) < 100.0


@pytest.mark.parametrize("silent", probe.PAGES)
async def test_a_page_that_never_answers_is_no_failure_if_another_does(
    recorder: Any,
    start: Any,
    until: Any,
    serve: Any,
    monkeypatch: pytest.MonkeyPatch,
    silent: str,
) -> None:
    async def page(request: web.Request) -> web.Response:
        await asyncio.sleep(60.0 * (request.path == silent))
        return web.Response()

    monkeypatch.setattr(probe, "TIMEOUT_S", 0.2)
    start(prober(recorder, await serve(page), time.monotonic).run())
    await until(lambda: len(recorder.round_trips) > 6)
    assert None not in {rtt_s for _, rtt_s, _ in recorder.round_trips[:4]}


async def test_health_is_asked_rarely_and_not_while_requests_are_answered(
    recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    asked: list[str] = []

    async def page(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    address, quiet = await serve(page), await serve(page)
    start(prober(recorder, address, time.monotonic, answered_at=lambda _: math.inf).run())
    await until(lambda: len(asked) > 40)
    assert "/health" not in asked
    asked.clear()
    start(prober(recorder, quiet, time.monotonic).run())
    await until(lambda: asked.count("/health") > 2)
    assert asked.count("/health") < 0.4 * len(asked)


async def test_a_dead_engine_behind_a_server_that_answers_fails_at_every_visit(
    recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(status=503 if request.path == "/health" else 200)

    start(prober(recorder, await serve(page), time.monotonic).run())
    await until(lambda: len(recorder.round_trips) > 3)
    assert {rtt_s for _, rtt_s, _ in recorder.round_trips} == {None}


async def test_an_endpoint_that_comes_back_clears_its_problem(
    recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    status = 503

    async def health(_: web.Request) -> web.Response:
        return web.Response(status=status)

    start(prober(recorder, await serve(health), time.monotonic).run())
    await until(lambda: recorder.problems)
    status = 200
    await until(lambda: recorder.problems == {})
