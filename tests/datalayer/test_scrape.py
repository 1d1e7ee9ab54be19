from __future__ import annotations

import asyncio
import gzip
import math
import operator
import random
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from aiohttp import web

from laar.datalayer import scrape
from laar.datalayer.discovery import look_at
from laar.datalayer.endpoints_file import Endpoint
from laar.datalayer.scrape import Scraper
from laar.datalayer.visits import Visits
from laar.faults import Fault
from laar.fleet.membership import EVENTS_LABEL, REPLAY_LABEL, EndpointSpec
from laar.telemetry.problems import Problems

QUIET = SimpleNamespace(problem=lambda *_: None)
PAGE = b"vllm:num_requests_waiting 2.0\nvllm:prompt_tokens_total 9\n"


def scraper(sink: Any, specs: list[EndpointSpec], **options: Any) -> Scraper:
    options = {"interval_s": 0.02, **options}
    return Scraper(lambda: specs, sink, clock=time.monotonic, rng=random.Random(1), **options)


def spec(address: str, **fields: Any) -> EndpointSpec:
    return EndpointSpec(address=address, models=("tiny",), **fields)


async def test_pages_become_readings_on_one_kept_alive_connection(
    recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    ports: set[int] = set()

    async def metrics(request: web.Request) -> web.Response:
        if request.path != "/metrics":
            raise web.HTTPNotFound
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.Response(body=PAGE)

    address = await serve(metrics)
    before = time.monotonic()
    start(scraper(recorder, [spec(address)]).run())
    await until(lambda: len(recorder.readings) >= 4)
    got, reading, now = recorder.readings[0]
    assert got == address
    assert reading.waiting == 2.0
    assert math.isnan(reading.running)
    assert before <= now <= time.monotonic()
    assert len(ports) == 1
    assert recorder.problems == {}


LIVE = {"publisher": "zmq", "enable_kv_cache_events": True, "endpoint": "tcp://*:5557"}
PORTS = {EVENTS_LABEL: "5557", REPLAY_LABEL: "5558"}


@pytest.mark.parametrize(
    ("said", "labels"),
    [
        ({"0": LIVE}, {EVENTS_LABEL: "5557"}),
        ({"0": LIVE | {"replay_endpoint": "tcp://*:5558"}}, PORTS),
        ({"3": LIVE | {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}}, PORTS),
        ({"4": LIVE, "5": LIVE | {"endpoint": "tcp://*:5558"}}, {EVENTS_LABEL: "5557,5558"}),
        ({"4": LIVE, "5": LIVE}, {EVENTS_LABEL: "5561,5562"}),
        ({"4": LIVE, "5": LIVE | {"endpoint": "tcp://*:0"}}, {}),
        (
            [
                {"data_parallel_rank": 5, "endpoint": "tcp://10.0.0.1:40123"},
                {"data_parallel_rank": 4, "endpoint": "tcp://10.0.0.1:39001"},
            ],
            {EVENTS_LABEL: "39001,40123"},
        ),
        ([{"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": ""}], PORTS),
        ([LIVE | {"publisher": "null"}], {}),
        ([{"endpoint": "tcp://*:0"}], {}),
        ([7], {}),
        ([], {}),
        ({"0": LIVE | {"endpoint": "tcp://10.9.9.9:5557"}}, {EVENTS_LABEL: "5557"}),
        ({"0": LIVE | {"endpoint": "ipc:///tmp/x"}}, {}),
        ({"0": LIVE | {"endpoint": "tcp://*:99999999"}}, {}),
        ({"0": LIVE | {"endpoint": None}}, {}),
        ({"0": LIVE | {"enable_kv_cache_events": False}}, {}),
        ({"0": LIVE | {"publisher": "null"}}, {}),
        (
            {"kv_events_config": '{"publisher": "zmq", "endpoint": "tcp://*:5557"}'},
            {EVENTS_LABEL: "5557"},
        ),
        (
            {
                "kv_events_config": '{"publisher": "zmq"}',
                "kv_events": {
                    "publisher": "zmq",
                    "endpoint_host": "*",
                    "endpoint_port_base": 5557,
                    "replay_endpoint_port_base": 5558,
                },
            },
            PORTS,
        ),
        ({"kv_events": None, "kv_events_config": "{"}, {}),
        ({"0": [LIVE]}, {}),
        ({"9" * 5000: LIVE}, {}),
        ({}, {}),
    ],
)
def test_an_engine_tells_where_it_publishes_events(said: Any, labels: dict[str, str]) -> None:
    assert scrape.events_labels(said) == labels


async def test_an_engine_is_asked_once_where_it_publishes_unless_a_label_says_so(
    recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    asked: Counter[str] = Counter()

    async def engine(request: web.Request) -> web.Response:
        asked[request.path] += 1
        if request.path == "/metrics":
            return web.Response(body=PAGE)
        return web.json_response({"0": LIVE})

    one, other = await serve(engine), await serve(engine)
    labeled = spec(other, labels={EVENTS_LABEL: "7000"})
    start(scraper(recorder, [spec(one), labeled]).run())
    await until(lambda: asked["/metrics"] >= 8)
    assert recorder.published == {one: {EVENTS_LABEL: "5557"}}
    assert asked["/kv_event_sources"] == 1


@pytest.mark.parametrize("busy", [503, 0], ids=["not ready", "hangs up"])
async def test_ranks_are_found_even_if_the_engine_cannot_name_their_number_at_first(
    recorder: Any, start: Any, until: Any, serve: Any, busy: int
) -> None:
    asked = 0
    page = "".join(
        f'sglang:{name}{{dp_rank="{rank}",tp_rank="{rank}"}} 0.0\n'
        for name in ("num_queue_reqs", "num_running_reqs")
        for rank in range(2)
    )

    async def engine(request: web.Request) -> web.Response:
        nonlocal asked
        if request.path == "/metrics":
            return web.Response(text=page)
        asked += 1
        if asked <= 2 and not busy:
            request.transport.abort()
        return web.json_response({"dp_size": 2}, status=busy if asked <= 2 and busy else 200)

    address = await serve(engine)
    start(scraper(recorder, [spec(address, engine="sglang")]).run())
    await until(lambda: recorder.ranks == {address: 2})
    await until(lambda: len(recorder.readings) > 12)
    assert asked == 4  # the last time, where it publishes events


async def test_bad_pages_are_problems_and_never_readings_that_look_idle(
    recorder: Any, start: Any, until: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bad(request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/500":
                return web.Response(status=500, body=PAGE)
            case "/moved":
                raise web.HTTPFound("/metrics")
            case "/odd":
                return web.Response(body=gzip.compress(PAGE)[5:])
            case "/hang":
                await asyncio.sleep(60)
            case "/reset":
                request.transport.abort()
        return web.Response(body=PAGE)

    address = await serve(bad)
    paths = ["500", "moved", "odd", "hang", "reset"]
    specs = [
        spec(f"10.0.0.{i}:1", metrics_url=f"http://{address}/{path}")
        for i, path in enumerate(paths)
    ]
    specs.append(spec("127.0.0.1:1"))
    monkeypatch.setattr(scrape, "TIMEOUT_S", 0.5)
    start(scraper(recorder, specs).run())
    failing = {f"scrape {one.address}" for one in specs}
    words = [
        "answered 500, not 200",
        "answered 302, not 200",
        "has no vllm:num_requests_waiting",
        "Timeout",
    ]

    def named() -> bool:  # on a busy machine a page may be late once
        said = [recorder.problems.get(f"scrape 10.0.0.{n}:1", "") for n in range(len(words))]
        return all(map(operator.contains, said, words))

    await until(lambda: named() and set(recorder.problems) == failing and recorder.readings)
    assert {address for address, _, _ in recorder.readings} == {"10.0.0.2:1"}
    assert all(math.isnan(reading.waiting) for _, reading, _ in recorder.readings)


async def test_a_huge_page_is_truncated_and_reported_but_its_beginning_is_used(
    recorder: Any, start: Any, until: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = 0

    async def huge(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(PAGE)
        for _ in range(800):
            await answer.write(b"#" * 65536)
            sent += 65536
        return answer

    address = await serve(huge)
    monkeypatch.setattr(scrape, "MAX_PAGE_BYTES", 100_000)
    start(scraper(recorder, [spec(address)], interval_s=60).run())
    await until(lambda: recorder.readings)
    assert recorder.readings[0][1].waiting == 2.0
    assert "longer than 100000 bytes: cut off" in recorder.problems[f"scrape {address}"]
    assert sent < 800 * 65536


async def test_a_problem_ends_with_a_good_page_with_the_endpoint_or_with_its_page(
    recorder: Any, start: Any, until: Any, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="laar")
    problems = Problems()
    recorder.problem, status = problems.report, 503

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(status=status, body=PAGE)

    address = await serve(metrics)
    specs = [spec(address), spec("127.0.0.1:1"), spec("127.0.0.1:2")]
    start(scraper(recorder, specs).run())
    await until(lambda: len(problems) == 3)
    status = 200
    await until(lambda: len(problems) == 2)
    specs[1:] = [spec("127.0.0.1:2", metrics_url="")]
    await until(lambda: not problems)
    ends = ["works again", "no longer watched", "no longer watched"]
    assert [end for end in ends if end in caplog.text] == ends
    assert caplog.text.count("works again") == 1


async def test_only_a_connection_refused_by_the_engine_itself_makes_it_unreachable(
    recorder: Any, start: Any, until: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    monkeypatch.setattr(scrape, "TIMEOUT_S", 0.05)
    elsewhere = spec("127.0.0.1:2", metrics_url="http://127.0.0.1:1/metrics")
    specs = [spec(await serve(late)), elsewhere, spec("127.0.0.1:1")]
    start(scraper(recorder, specs).run())
    await until(lambda: len(recorder.problems) == 3)
    found = {(address, rtt_s) for address, rtt_s, _ in recorder.round_trips}
    assert found == {("127.0.0.1:1", math.inf)}


class Busy:
    """Visits that last until the test releases them."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.now = 0
        self.most = 0
        self.go_on = asyncio.Event()

    async def visit(self, one: EndpointSpec) -> None:
        self.started.append(one.address)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.go_on.wait()
        finally:
            self.now -= 1


class Visiting(Visits):
    """A collector whose visits call a function of the test."""

    kind = Fault.PROBE
    headers: ClassVar = {}

    def __init__(self, visit: Any, specs: list[EndpointSpec], **options: Any) -> None:
        options = {"interval_s": 0.01, "clock": time.monotonic, **options}
        super().__init__(lambda: specs, options.pop("sink", QUIET), rng=random.Random(1), **options)
        self.visit = visit
        self.kept = {spec.address: "something" for spec in specs}


async def test_the_visit_to_a_removed_endpoint_is_cancelled(start: Any, until: Any) -> None:
    busy = Busy()
    specs = [spec("a:1"), spec("b:1")]
    visiting = Visiting(busy.visit, specs)
    start(visiting.run())
    await until(lambda: busy.now == 2)
    specs.pop()
    await until(lambda: busy.now == 1)
    assert visiting.kept.keys() == {"a:1"}
    specs.append(spec("b:1"))
    await until(lambda: busy.now == 2)


async def test_an_unexpected_error_fails_only_its_own_visit(
    recorder: Any, start: Any, until: Any, caplog: Any
) -> None:
    seen: Counter[str] = Counter()

    async def visit(one: EndpointSpec) -> None:
        seen[one.address] += 1
        if one.address == "a:1":
            raise ZeroDivisionError

    start(Visiting(visit, [spec("a:1"), spec("b:1")], sink=recorder).run())
    await until(lambda: min(seen["a:1"], seen["b:1"]) >= 3)
    assert recorder.problems == {"probe a:1": "failed with ZeroDivisionError; see the log"}
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_a_large_fleet_stretches_the_interval(start: Any, until: Any) -> None:
    """By the test's clock, at most 200 visits a second start at 1,000 endpoints."""
    busy = Busy()
    busy.go_on.set()
    now = 0.0
    specs = [spec(f"10.0.{i // 250}.{i % 250}:1") for i in range(1000)]
    start(Visiting(busy.visit, specs, clock=lambda: now).run())
    while len(busy.started) <= 1200:  # the number of steps depends on the machine
        now += 0.5
        allowed = 200 * now + 64
        count = -1
        while count != len(busy.started):
            count = len(busy.started)
            await asyncio.sleep(0.012)
        assert count <= 1.15 * allowed
    assert set(busy.started) == {one.address for one in specs}


async def test_engines_of_several_kinds_are_read_together(
    recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    pages = {
        "vllm": b"vllm:num_requests_waiting 1\nvllm:num_requests_running 5\n",
        "sglang": b'sglang:num_queue_reqs{tp_rank="0"} 2\nsglang:num_running_reqs{tp_rank="0"} 6\n',
        "tensorrt-llm": b"trtllm_num_requests_waiting 3\ntrtllm_num_requests_running 7\n",
        "llama.cpp": b"llamacpp:requests_deferred 4\nllamacpp:requests_processing 8\n",
    }
    specs = []
    for engine, page in pages.items():
        path = "/prometheus/metrics" if engine == "tensorrt-llm" else "/metrics"

        async def metrics(
            request: web.Request, page: bytes = page, path: str = path
        ) -> web.Response:
            # Other paths return JSON, as TensorRT-LLM does.
            return web.Response(body=page if request.path == path else b"[]")

        specs.append(spec(await serve(metrics), engine=engine))
    kinds = [
        engine.kind
        for engine in await look_at([Endpoint(address=each.address, model="m") for each in specs])
    ]
    assert kinds == list(pages)
    start(scraper(recorder, specs).run())
    await until(lambda: len({address for address, *_ in recorder.readings}) == len(specs))
    read = {address: reading for address, reading, _ in recorder.readings}
    found = [(read[each.address].waiting, read[each.address].running) for each in specs]
    assert found == [(1.0, 5.0), (2.0, 6.0), (3.0, 7.0), (4.0, 8.0)]
    assert recorder.problems == {}


async def test_ranks_that_a_few_pages_lack_are_kept(
    recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    pages, told = iter(range(10_000)), list[int]()
    recorder.ranked = lambda _address, ranks: told.append(ranks)
    gone = False

    async def metrics(_: web.Request) -> web.Response:
        most = 1 if gone or next(pages) % 3 else 4  # two pages of three are incomplete
        lines = (f'vllm:num_requests_running{{engine="{rank}"}} 1.0\n' for rank in range(most))
        return web.Response(text="".join(lines))

    start(scraper(recorder, [spec(await serve(metrics))]).run())
    await until(lambda: len(told) > 10)
    assert set(told) == {4}
    gone = True
    await until(lambda: told[-1] == 1)


async def test_publishers_that_cannot_be_followed_are_a_problem(
    recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    async def engine(request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(body=PAGE)
        return web.json_response([{"data_parallel_rank": 0, "endpoint": "tcp://*:0"}])

    address = await serve(engine)
    start(scraper(recorder, [spec(address)]).run())
    await until(lambda: "can't be followed" in recorder.problems.get(f"kv-events {address}", ""))
