"""The parts of `python -m bench picker`; each prints its figures as they are measured."""

from __future__ import annotations

import asyncio
import math
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path

from bench.figures import Figures, rank
from bench.picking.load import Load, bodies
from bench.picking.streams import hold_streams
from bench.picking.subjects import (
    ALONE,
    LAAR,
    NOOP,
    NOOP_USUAL,
    Running,
    Subject,
    endpoints,
    laar_with,
    running,
)
from laar_lab.live.bootstraps import AnyShape

__all__ = ["SHAPES", "Costs", "cpu", "crowds", "features", "fleets", "idle", "latency", "streams"]

ROUNDS = 5
WARM_UP_REQUESTS = 40
AT_ONCE = 8
SHAPES: dict[str, AnyShape] = {
    "native": "sidecar",
    "streamed": "gateway",
    "full duplex": "full-duplex",
}
_ENDPOINTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of request."""

    name: str
    body_bytes: int
    requests: int  # in each round
    chunks: int | None = None  # events of the answer; None for one JSON text


CASES = (
    Case(name="1 KB", body_bytes=1_000, requests=120),
    Case(name="16 KB", body_bytes=16_000, requests=120),
    Case(name="64 KB", body_bytes=64_000, requests=100),
    Case(name="220 KB", body_bytes=220_000, requests=80),
    Case(name="400 KB", body_bytes=400_000, requests=60),
    Case(name="1 MB", body_bytes=1_000_000, requests=32),
    Case(name="4 KB, answer of 1 chunk", body_bytes=4_000, requests=100, chunks=1),
    Case(name="4 KB, answer of 200 chunks", body_bytes=4_000, requests=40, chunks=200),
)

TARGETS = {
    ("native", "1 KB"): 1.2,
    ("native", "16 KB"): 1.2,
    ("full duplex", "1 KB"): 0.9,
    ("full duplex", "16 KB"): 0.9,
    ("full duplex", "4 KB, answer of 200 chunks"): 0.35,
}
"""CPU relative to the no-op picker on grpc.aio; in the native shape, behind a usual Envoy."""


@dataclass(slots=True)
class Costs:
    """CPU microseconds per request by shape and case, of each picker and of its Envoy."""

    pickers: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    envoys: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)


async def cpu(
    figures: Figures,
    costs: Costs,
    subjects: Sequence[Subject],
    share: float,
    shapes: Sequence[str] = tuple(SHAPES),
) -> None:
    """Measure each subject's CPU use for each kind of request and shape, alternately."""
    floor_name = next((one.name for one in subjects if one.argv is not None), "")
    for shape in shapes:
        async with _standing(shape, subjects) as stood:
            for case in CASES:
                key = shape, case.name
                picker, envoy = await _by_turns(stood, case, share)
                costs.pickers[key], costs.envoys[key] = picker, envoy
                for one in stood:
                    if one.picker is not None:
                        named = f"{shape}, {case.name}: {one.name}"
                        figures.add("cpu", named, picker[one.name], "us a request")
                floor, own = picker.get(floor_name), picker.get(LAAR.name)
                if floor and own:
                    named = f"{shape}, {case.name}: laar / {floor_name}"
                    most = TARGETS.get(key) if floor_name == NOOP_USUAL.name else None
                    figures.add("cpu", named, own / floor, "x", at_most=most)
            for one in stood:
                if one.picker is not None:
                    named = f"{shape}: memory of {one.name}"
                    figures.add("cpu", named, one.picker_bytes() / 2**20, "MiB")
        single, many = (
            costs.pickers[shape, case.name].get(LAAR.name) for case in CASES if case.chunks
        )
        if single and many:
            named = f"{shape}: answer of 200 chunks / one of 1"
            most = 1.5 if shape == "native" else None
            figures.add("cpu", named, many / single, "x", at_most=most)


async def features(figures: Figures, share: float) -> None:
    """Measure the CPU cost of laar's features one by one, relative to the random policy."""
    with as_file(files("laar_lab.sim") / "data" / "laar-fleet.capability.json") as artifact:
        subjects = (
            laar_with("policy random", routing={"policy": "random"}),
            laar_with("policy least-loaded", routing={"policy": "least-loaded"}),
            LAAR,
            laar_with("with an artifact", accuracy={"capability": str(artifact)}),
            laar_with("every answer read", bodies={"sample_answers": 1.0}),
            laar_with("flow control", flow={"enabled": True}),
            laar_with("context hook", context={"routes": [{"name": "all", "mode": "on"}]}),
        )
        async with _standing("native", subjects) as stood:
            for case in CASES[:2]:
                picker, _ = await _by_turns(stood, case, share)
                for name, value in picker.items():
                    figures.add("features", f"{case.name}: {name}", value, "us a request")
                    ratio = value / picker[subjects[0].name]
                    figures.add("features", f"{case.name}: {name} / random", ratio, "x")


async def fleets(figures: Figures, share: float) -> None:
    """Measure the CPU cost of a short request, and of scraping, with 1 to 1,000 endpoints."""
    sums = {}
    for count in (1, 10, 100, 1000):
        async with _standing("native", (LAAR,), count=count) as (one,):
            await _settled(one)
            load = Load(one.url, bodies(1_000, stream=False))
            await load.closed(WARM_UP_REQUESTS, AT_ONCE)
            reading = await _cpu_of(one, asyncio.sleep(3.0)) / 3.0  # it still scrapes frequently
            costs = []
            requests = max(AT_ONCE, round(3 * CASES[0].requests * share))
            for _ in range(ROUNDS):
                began = time.monotonic()
                spent = await _cpu_of(one, load.closed(requests, AT_ONCE))
                costs.append((spent - reading * (time.monotonic() - began)) / requests)
            load.close()
            sums[count] = statistics.median(costs)
            named = f"1 KB, {count} endpoints, without scraping"
            figures.add("fleets", named, 1e6 * sums[count], "us a request")
            figures.add("fleets", f"scraping {count} endpoints", reading, "of a core")
            memory = one.picker_bytes() / 2**20
            figures.add("fleets", f"{count} endpoints: memory", memory, "MiB")
    figures.add("fleets", "1,000 endpoints / 10", sums[1000] / sums[10], "x", at_most=1.4)


async def _cpu_of(one: Running, work: Awaitable[object]) -> float:
    """Return the CPU seconds that a picker uses while `work` is awaited."""
    before = one.spent_s()[0]
    await work
    return one.spent_s()[0] - before


async def idle(figures: Figures, seconds: float) -> None:
    """Measure the CPU use of a picker without requests, which only scrapes its endpoints."""
    for count, most in ((100, 0.01), (1000, None)):
        async with _standing("native", (LAAR,), count=count) as stood:
            await _settled(stood[0])
            share = await _cpu_of(stood[0], asyncio.sleep(seconds)) / seconds
            figures.add("idle", f"idle, {count} endpoints", share, "of a core", at_most=most)


async def latency(figures: Figures, seconds: float) -> None:
    """Measure the latency that a picker adds to Envoy alone, at half of laar's maximum rate."""
    for case, most, ratios in ((CASES[0], 1.0, {0.5: 1.3, 0.99: 1.1}), (CASES[4], 2.0, {})):
        sent = bodies(case.body_bytes, stream=False)
        async with _standing("native", (ALONE, NOOP, LAAR)) as stood:
            loads = [Load(one.url, sent) for one in stood]
            for load in loads:
                await load.closed(WARM_UP_REQUESTS, AT_ONCE)
            began = time.monotonic()
            many = 10 * case.requests
            await loads[-1].closed(many, 4 * AT_ONCE)
            rate = many / (time.monotonic() - began) / 2
            figures.add("latency", f"{case.name}: half of laar's rate", rate, "a second")
            took: list[list[float]] = [[] for _ in loads]
            for number in range(ROUNDS):
                for load, times in zip(loads, took, strict=True):
                    times += await load.at_rate(rate, seconds / ROUNDS, number)
            for load in loads:
                load.close()
        for one, times in zip(stood, took, strict=True):
            for part in (0.5, 0.99, 0.999):
                named = f"{case.name}: {one.name}, p{100 * part:g}"
                figures.add("latency", named, 1000 * rank(times, part), "ms")
        for part in (0.5, 0.99, 0.999):
            alone, noop, laar = (rank(times, part) for times in took)
            named, added = f"{case.name}: laar adds, p{100 * part:g}", 1000 * (laar - alone)
            figures.add("latency", named, added, "ms", at_most=most if part == 0.99 else None)
            ratio = (laar - alone) / (noop - alone)
            figures.add("latency", f"{named} / no-op", ratio, "x", at_most=ratios.get(part))


async def crowds(figures: Figures, share: float) -> None:
    """Measure throughput and CPU with prompts of 220 KB from 1 to 1,000 concurrent clients."""
    sent = bodies(220_000, stream=False)
    async with _standing("native", (LAAR,)) as (one,):
        load = Load(one.url, sent, may_fail=True)
        await load.closed(WARM_UP_REQUESTS, AT_ONCE)
        for clients in (1, 20, 150, 1000):
            failed = load.failed
            many = round(max(400, 2 * clients) * share)
            began = time.monotonic()
            spent = 1e6 * await _cpu_of(one, load.closed(many, clients)) / many
            took = time.monotonic() - began
            named = f"220 KB, {clients} clients"
            most = 500.0 if clients in (20, 150) else None
            figures.add("crowds", named, spent, "us a request", at_most=most)
            figures.add("crowds", named, many / took, "requests a second")
            if load.failed > failed:
                named = f"{named}: not decided within Envoy's time limit"
                figures.add("crowds", named, load.failed - failed, f"of {many}")
        load.close()


async def streams(figures: Figures, count: int) -> None:
    """Measure memory and failures with many concurrent endless answers."""
    async with _standing("native", (LAAR,)) as (one,):
        load = Load(one.url, bodies(1_000, stream=True), 1)
        await load.closed(WARM_UP_REQUESTS, AT_ONCE)
        load.close()
        before = one.picker_bytes()
        body = bodies(500, stream=True)[0]  # a hundred fit into a connection's window
        async with hold_streams(one.url, count, body) as held:
            after = one.picker_bytes()
            open_bytes = (after - before) / max(1, held.answered)
            figures.add("streams", "answers begun", held.answered, f"of {count}", at_least=count)
            figures.add("streams", "memory of the picker", after / 2**20, "MiB", at_most=1024)
            figures.add("streams", "memory of each", open_bytes / 1024, "KiB")
            await asyncio.sleep(1.0)
            figures.add("streams", "broken while open", held.broken, f"of {count}", at_most=0)


@asynccontextmanager
async def _standing(
    shape: str, subjects: Sequence[Subject], *, count: int = _ENDPOINTS
) -> AsyncIterator[list[Running]]:
    """Run all subjects with the same endpoints."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="laar-bench-")))
        ports = await stack.enter_async_context(endpoints(directory, count))
        yield [
            await stack.enter_async_context(
                running(SHAPES[shape], subject, directory / str(number), ports)
            )
            for number, subject in enumerate(subjects)
        ]


async def _by_turns(
    stood: Sequence[Running], case: Case, share: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return CPU microseconds per request of pickers and of Envoys (median over rounds)."""
    sent = bodies(case.body_bytes, stream=case.chunks is not None)
    loads = [Load(one.url, sent, case.chunks) for one in stood]
    for load in loads:
        await load.closed(WARM_UP_REQUESTS, AT_ONCE)
    count = max(AT_ONCE, round(case.requests * share))
    rounds: list[list[tuple[float, float]]] = [[] for _ in stood]
    for _ in range(ROUNDS):
        for one, load, spent in zip(stood, loads, rounds, strict=True):
            before = one.spent_s()
            await load.closed(count, AT_ONCE)
            after = one.spent_s()
            spent.append((after[0] - before[0], after[1] - before[1]))
    for load in loads:
        load.close()
    picker, envoy = (
        {
            one.name: 1e6 * statistics.median(each[part] for each in spent) / count
            for one, spent in zip(stood, rounds, strict=True)
        }
        for part in (0, 1)
    )
    return picker, envoy


async def _settled(one: Running) -> None:
    """Wait until a picker's CPU use has halved and stops falling, or for 20 s."""
    most, last = 0.0, math.inf
    for _ in range(20):
        spent = await _cpu_of(one, asyncio.sleep(1.0))
        most = max(most, spent)
        if last <= spent < most / 2:
            return
        last = spent
