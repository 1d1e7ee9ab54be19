"""CPU that the picker spends on a request, beside the no-op picker's, through a real Envoy.

All run in one go, in turns, on the same machine, so the ratios stand even where the microseconds do
not: the no-op picker shows the cost of gRPC and JSON parsing in Python. It runs twice: behind an
Envoy that sends it the request's headers first, as pickers are set up everywhere, and behind laar's
own bootstrap, whose native shape saves that message. laar runs on both transports
(`listen.transport`). Loopback only, a few hundred requests for each figure, 8 connections.

    python -m bench picker
    python -m bench.bench_picker 0.3     # with 0.3 of the requests
    python -m bench.bench_picker 0.3 before=../before/src    # laar beside other sources of it
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml
from aiohttp import web
from rich.console import Console
from rich.table import Table

from laar.envoy import (
    BootstrapOptions,
    EndpointAddress,
    EnvoyProcess,
    Shape,
    render,
    write_eds,
)
from laar.lab.live.processes import free_ports

TARGET_RATIO = 1.5
CONNECTIONS = 8
ROUNDS = 3
WARM_UP_REQUESTS = 40
DISTINCT_BODIES = 16
CHUNK_GAP_S = 0.001
START_TIMEOUT_S = 60.0
SHAPES: tuple[Shape, ...] = ("sidecar", "gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of request."""

    name: str
    body_bytes: int
    answer_chunks: int  # 0: one JSON answer
    requests: int  # in each round
    judged: bool = True


CASES = (
    Case(name="1 KB", body_bytes=1_000, answer_chunks=0, requests=120),
    Case(name="16 KB", body_bytes=16_000, answer_chunks=0, requests=120),
    Case(name="400 KB", body_bytes=400_000, answer_chunks=0, requests=80),
    Case(
        name="4 KB, answer of 100 chunks",
        body_bytes=4_000,
        answer_chunks=100,
        requests=48,
        judged=False,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a picker under measurement runs."""

    directory: Path
    endpoint: str  # ip:port
    port: int  # ext_proc
    health_port: int
    admin_port: int


Argv = Callable[[Place], Sequence[str]]


def noop_argv(place: Place) -> Sequence[str]:
    """The floor."""
    module = [sys.executable, "-m", "bench.noop_picker"]
    return [*module, "--port", str(place.port), "--endpoint", place.endpoint]


def laar_argv(place: Place, transport: str) -> Sequence[str]:
    """The real picker."""
    path = place.directory / "laar.yaml"
    path.write_text(yaml.safe_dump(laar_settings(place, transport)))
    return [sys.executable, "-m", "laar.cli", "serve", "-c", str(path)]


def laar_settings(place: Place, transport: str) -> dict[str, object]:
    """The smallest settings that serve the one endpoint."""
    return {
        "listen": {
            "transport": transport,
            "ext_proc": f"127.0.0.1:{place.port}",
            "health": f"127.0.0.1:{place.health_port}",
            "admin": f"127.0.0.1:{place.admin_port}",
        },
        "endpoints": [{"address": place.endpoint, "models": ["bench"]}],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A picker under measurement; `usual` puts it behind an Envoy that sends headers first."""

    name: str
    argv: Argv
    usual: bool = False


SUBJECTS = (
    Subject(name="no-op, usual Envoy", argv=noop_argv, usual=True),
    Subject(name="no-op, our Envoy", argv=noop_argv),
    Subject(name="laar on grpc", argv=partial(laar_argv, transport="grpc")),
    Subject(name="laar on h2", argv=partial(laar_argv, transport="h2")),
)


def send_headers_first(bootstrap: dict[str, Any]) -> None:
    """Makes a native bootstrap one that sends the headers and then the body, to every path."""
    listener = bootstrap["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = [f for f in manager["http_filters"] if "buffer" not in f["name"]]
    for http_filter in manager["http_filters"]:
        if "ext_proc" in http_filter["name"]:
            http_filter["typed_config"]["processing_mode"]["request_header_mode"] = "SEND"
            http_filter["typed_config"]["request_attributes"] = []
    host = manager["route_config"]["virtual_hosts"][0]
    host["routes"] = host["routes"][-1:]
    host["routes"][0].pop("typed_per_filter_config", None)


def other_sources(named: str) -> Subject:
    """A picker on h2 whose sources are given as ``name=src``."""
    name, _, path = named.partition("=")

    def argv(place: Place) -> Sequence[str]:
        return ["env", f"PYTHONPATH={path}", *laar_argv(place, "h2")]

    return Subject(name=name, argv=argv)


def main(share: float = 1.0, *sources: str) -> None:
    subjects = (*map(other_sources, sources), SUBJECTS[-1]) if sources else SUBJECTS
    asyncio.run(compare(subjects, share))


async def compare(subjects: Sequence[Subject], share: float) -> None:
    """Measure the subjects and print the table; the last one's ratios are to each of the others.

    Args:
        subjects: the pickers.
        share: share of the requests that each figure takes.
    """
    table = Table("bodies", "request", *(f"{subject.name}, us" for subject in subjects))
    for subject in subjects[:-1]:
        table.add_column(f"ratio to {subject.name}")
    worst = 0.0
    for shape in SHAPES:
        figures = await measure(shape, subjects, share)
        for case, costs in zip(CASES, figures, strict=True):
            ratios = [costs[-1] / cost for cost in costs[:-1]]
            if case.judged:
                worst = max(worst, ratios[0])
            cells = [*(f"{cost:.0f}" for cost in costs), *(f"{ratio:.2f}" for ratio in ratios)]
            table.add_row("native" if shape == "sidecar" else "full duplex", case.name, *cells)
    console = Console()
    console.print(table)
    verdict = "met" if worst <= TARGET_RATIO else "missed"
    console.print(
        f"CPU for each request, median of {ROUNDS} rounds; worst ratio to {subjects[0].name}, at 1 "
        f"to 400 KB: {worst:.2f}, target at most {TARGET_RATIO}: {verdict}"
    )


async def measure(shape: Shape, subjects: Sequence[Subject], share: float) -> list[list[float]]:
    """Microseconds of CPU for each request: a row for each case, a column for each subject."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="laar-bench-")))
        endpoint_port = await stack.enter_async_context(_endpoint())
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS))
        )
        running = [
            await stack.enter_async_context(
                _running(shape, subject, directory / str(index), endpoint_port)
            )
            for index, subject in enumerate(subjects)
        ]
        figures = []
        for case in CASES:
            bodies = _bodies(case)
            for _, url in running:
                await _ask(session, url, case, bodies, WARM_UP_REQUESTS)
            rounds = []
            count = max(CONNECTIONS, round(case.requests * share))
            for _ in range(ROUNDS):
                costs = []
                for pid, url in running:
                    before_ns = _cpu_ns(pid)
                    await _ask(session, url, case, bodies, count)
                    costs.append((_cpu_ns(pid) - before_ns) / count / 1000)
                rounds.append(costs)
            figures.append([statistics.median(costs) for costs in zip(*rounds, strict=True)])
        return figures


@asynccontextmanager
async def _running(
    shape: Shape, subject: Subject, directory: Path, endpoint_port: int
) -> AsyncIterator[tuple[int, str]]:
    """A running picker with an Envoy of its own: its process id and Envoy's URL."""
    directory.mkdir()  # noqa: ASYNC240 - before anything is measured
    ports = free_ports(3)
    place = Place(
        directory=directory,
        endpoint=f"127.0.0.1:{endpoint_port}",
        port=ports[0],
        health_port=ports[1],
        admin_port=ports[2],
    )
    eds_path = directory / "endpoints.json"
    write_eds(eds_path, [EndpointAddress(host="127.0.0.1", port=endpoint_port)])
    options = BootstrapOptions(
        picker=f"127.0.0.1:{place.port}",
        eds_path=str(eds_path),
        listen_port=0,
        ready_port=0,
        admin_port=0,
        fail_open=False,  # a picker that does not answer must not look fast
    )
    log_path = directory / "picker.log"
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(*subject.argv(place), stdout=log, stderr=log)
    try:
        await _wait_until_listening(subject.name, process, place.port, log_path)
        bootstrap = render(shape, options)
        if subject.usual and shape != "gateway":
            send_headers_first(bootstrap)
        async with EnvoyProcess(bootstrap, directory) as envoy:
            yield process.pid, envoy.url()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _wait_until_listening(
    name: str, process: asyncio.subprocess.Process, port: int, log_path: Path
) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.returncode is None and time.monotonic() < deadline:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    log = log_path.read_text()  # noqa: ASYNC240 - the end
    raise SystemExit(f"{name} did not start:\n{log[-2000:]}")


async def _ask(
    session: aiohttp.ClientSession, url: str, case: Case, bodies: Sequence[bytes], count: int
) -> None:
    """``count`` requests over all connections at once; each must be answered whole."""
    numbers = iter(range(count))

    async def connection() -> None:
        for number in numbers:
            body = BytesIO(bodies[number % len(bodies)])
            path = f"{url}/v1/chat/completions?chunks={case.answer_chunks}"
            headers = {"content-type": "application/json"}
            async with session.post(path, data=body, headers=headers) as response:
                response.raise_for_status()
                if (await response.read())[-len(_DONE) :] != _DONE and case.answer_chunks:
                    raise SystemExit("a streamed answer arrived cut short")

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(connection())


def _cpu_ns(pid: int) -> int:
    """CPU time of a whole process, user and system, by Linux' clock for process ``pid``."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def _bodies(case: Case) -> list[bytes]:
    """Chat requests of the case's size: half a prompt that all share, half their own."""
    rng = random.Random(case.body_bytes)
    streamed = bool(case.answer_chunks)

    def words(length: int) -> str:
        letters = "".join(rng.choices("etaoinshrdlu   ", k=length // 2))
        return (letters * 2)[:length]

    frame = len(_chat("", "", stream=streamed))
    half = (case.body_bytes - frame) // 2
    shared = words(half)
    return [_chat(shared, words(half), stream=streamed) for _ in range(DISTINCT_BODIES)]


def _chat(system: str, user: str, *, stream: bool) -> bytes:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return orjson.dumps({"model": "bench", "messages": messages, "stream": stream})


_USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
_ANSWER = orjson.dumps(
    {
        "model": "bench",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}}],
        "usage": _USAGE,
    }
)
_CHUNK = b'data: {"model":"bench","choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
_DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def _endpoint() -> AsyncIterator[int]:
    """An endpoint in this process, whose CPU is not looked at."""
    application = web.Application(client_max_size=2**20)
    application.router.add_post("/v1/chat/completions", _answer)
    # A picker may look at what its endpoints say of themselves.
    application.router.add_get("/{path:.*}", lambda _: web.json_response({"data": []}))
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def _answer(request: web.Request) -> web.StreamResponse:
    await request.read()
    chunks = int(request.query["chunks"])
    if not chunks:
        return web.Response(body=_ANSWER, content_type="application/json")
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(chunks - 1):
        await response.write(_CHUNK)
        await asyncio.sleep(CHUNK_GAP_S)
    await response.write(b"data: " + orjson.dumps({"usage": _USAGE}) + b"\n\n" + _DONE)
    return response


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *sys.argv[2:])
