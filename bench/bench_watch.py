"""Measure the cost of observability: decision records, traces, the page's feed, a large scrape."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import random
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from dataclasses import replace
from typing import Any

import orjson
import uvloop

from bench.bench_decision import DISTINCT, messages, time_answer
from laar.core.decision import Completion
from laar.core.endpoints import Reading
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request
from laar.explain.record import shown
from laar.server.admin.metrics import metrics_page
from laar.server.runner import Runner
from laar.settings import Settings

END = Completion(status=200, cause="complete", latency_s=1.0, ttft_s=0.2)
VIEWERS = 10
RATE = 1000
ROUNDS, ROUND_S = 12, 2.5


def _runner(endpoints: int, **sections: Any) -> Runner:
    document = {"endpoints": [{"address": "10.0.0.1:80", "model": "m"}], **sections}
    runner = Runner(Settings.model_validate(document), seed=1)
    specs = [
        EndpointSpec(address=f"10.{i >> 8}.{i & 255}.1:80", models=(f"model-{i % 5}",))
        for i in range(endpoints)
    ]
    runner.picker.table.replace("bench", specs)
    now = runner.picker.clock()
    for spec in specs:
        runner.picker.table.read(spec.address, Reading(waiting=1, running=2, kv_usage=0.5), now)
        runner.picker.table.round_trip(spec.address, 0.01, now)
    return runner


def _request(i: int) -> Request:
    text = "a question " * 40
    return Request(
        id=f"r-{i}", api=Api.CHAT, model="auto", spans=(text,), question=text, chars=len(text)
    )


def _recording() -> None:
    runner = _runner(5)
    memory, director = runner.picker.observability.memory, runner.picker.director
    decisions = [replace(director.choose(_request(i), 0.0), id=str(i)) for i in range(500)]
    best = {"remember": 1e9, "end": 1e9, "log line": 1e9}
    for _ in range(40):
        began = time.thread_time()
        for decision in decisions:
            memory.decided(decision)
        decided = time.thread_time()
        for decision in decisions:
            memory.settled(decision, END)
        ended = time.thread_time()
        records = list(memory.latest(len(decisions)))
        lines = time.thread_time()
        for record in records:
            orjson.dumps(shown(record))
        wrote = time.thread_time()
        for name, seconds, count in (
            ("remember", decided - began, len(decisions)),
            ("end", ended - decided, len(decisions)),
            ("log line", wrote - lines, len(records)),
        ):
            best[name] = min(best[name], seconds / count * 1e6)
    total = sum(best.values())
    parts = ", ".join(f"{name} {us:.1f}" for name, us in best.items())
    print(f"recording a decision, 5 candidates, all logged: {total:.1f} us ({parts}); <= 15")


def _decide(runner: Runner, count: int) -> None:
    for i in range(count):
        decision = runner.picker.director.decide(_request(i), runner.picker.clock())
        runner.picker.director.settle(decision, END)


async def _feed() -> None:
    """Measure the cost of viewers: the picker's CPU under load with them, minus without."""
    from laar.server.admin.server import AdminServer

    runner = _runner(20)
    _decide(runner, 3000)
    server = AdminServer(runner.picker.observability.feed, "127.0.0.1", 0)
    tasks = [
        asyncio.create_task(server.run_until_stopped()),
        asyncio.create_task(runner.picker.observability.feed.run()),
    ]
    gc.collect()
    gc.freeze()  # like a picker after start-up
    alone, watched, frames = [], [], 0
    for _ in range(ROUNDS):
        alone.append(await _busy(runner))
        looking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _LOOK, str(server.port), str(VIEWERS)),
            stdin=PIPE,
            stdout=PIPE,
        )
        await _look(runner, VIEWERS)
        watched.append(await _busy(runner))
        frames += int((await looking.communicate(b""))[0])
        await _look(runner, 0)
    costs = [of - on for of, on in zip(watched, alone, strict=True)]
    error = statistics.stdev(costs) / math.sqrt(ROUNDS)
    print(
        f"{RATE:,} decisions/s among 20 endpoints, {ROUNDS} times {ROUND_S:g} s: "
        f"{statistics.mean(alone):.1%} of a core; with {VIEWERS} viewers, who got {frames} "
        f"frames: {statistics.mean(watched):.1%}; the feed: {statistics.mean(costs):.1%} "
        f"(standard error {error:.1%}); <= 5 %"
    )
    runner.picker.observability.feed.end_streams()
    server.should_exit = True
    await tasks[0]
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _look(runner: Runner, viewers: int) -> None:
    while runner.picker.observability.feed.viewers != viewers:  # noqa: ASYNC110 - the feed has no event
        await asyncio.sleep(0.05)


async def _busy(runner: Runner) -> float:
    """Return the share of a core this process uses while it decides at `RATE`."""
    began, busy, made = time.monotonic(), time.process_time(), 0
    while made < RATE * ROUND_S:
        due = min(int((time.monotonic() - began) * RATE), int(RATE * ROUND_S))
        _decide(runner, due - made)
        made = due
        await asyncio.sleep(0.005)
    return (time.process_time() - busy) / (time.monotonic() - began)


_LOOK = """
import os, socket, sys, threading

seen_frames = []

def look():
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as seen:
        seen.sendall(b"GET /events HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
        for line in seen.makefile("rb"):
            if line.startswith(b"data: "):
                seen_frames.append(1)

for _ in range(int(sys.argv[2])):
    threading.Thread(target=look).start()
sys.stdin.read()
print(len(seen_frames), flush=True)
os._exit(0)
"""


async def _tracing() -> None:
    """Measure a request's CPU without gRPC, by the client's sampling flag."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # there is no collector
    traced = f"00-{'a' * 32}-{'b' * 16}"
    kinds = {
        "tracing off": (None, ""),
        "off, the client traces": (None, f"{traced}-01"),
        "on, no trace": ("http://127.0.0.1:1/v1/traces", ""),
        "on, not sampled": ("http://127.0.0.1:1/v1/traces", f"{traced}-00"),
        "on, sampled": ("http://127.0.0.1:1/v1/traces", f"{traced}-01"),
    }
    prepared = []
    for name, (url, header) in kinds.items():
        runner = _runner(5, otlp={"traces": url})
        if (spans := runner.picker.observability.spans) is not None:
            spans.begin()
        exchanges = [messages(1000, number, header) for number in range(DISTINCT)]
        prepared.append((name, runner, exchanges))
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(2000):
        random.shuffle(prepared)  # whichever runs after one with spans finds a cold cache
        for name, runner, exchanges in prepared:
            began = time.thread_time()
            await time_answer(runner.processor, exchanges[turn % DISTINCT])
            took[name].append(time.thread_time() - began)
    for name, seconds in took.items():
        print(f"a request's CPU, {name}: {statistics.median(seconds) * 1e6:.1f} us")
    [sampled] = [one for one in prepared if one[0] == "on, sampled"]
    print(f"and to encode its span, in a thread: {await _encoding(*sampled[1:]):.1f} us")


async def _encoding(runner: Runner, exchanges: list[Any]) -> float:
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, kept = runner.picker.observability.spans, InMemorySpanExporter()
    assert spans is not None
    spans._provider.add_span_processor(SimpleSpanProcessor(kept))
    for exchange in exchanges[:DISTINCT]:
        await time_answer(runner.processor, exchange)
    batch, seconds = kept.get_finished_spans(), []
    for _ in range(9):
        began = time.thread_time()
        encode_spans(batch).SerializePartialToString()
        seconds.append(time.thread_time() - began)
    return min(seconds) / len(batch) * 1e6


def _frame(endpoints: int) -> None:
    runner = _runner(endpoints)
    _decide(runner, 2500)
    began = time.thread_time()
    for _ in range(5):
        body = orjson.dumps(runner.picker.observability.page.frame(runner.picker.clock()))
    took = (time.thread_time() - began) / 5
    print(f"one frame, {endpoints} endpoints: {took * 1e3:.1f} ms, {len(body) / 1e3:.0f} kB")


def _scrape() -> None:
    runner = _runner(1000)
    _decide(runner, 100)
    times = []
    for _ in range(7):
        began = time.thread_time()
        page = metrics_page(runner.picker)
        times.append(time.thread_time() - began)
    took = sorted(times)[len(times) // 2] * 1e3
    print(f"a scrape, 1,000 endpoints, {len(page) / 1e3:.0f} kB: {took:.1f} ms; <= 50")


def main() -> None:
    _recording()
    _frame(20)
    _frame(1000)
    _scrape()
    uvloop.run(_tracing())
    uvloop.run(_feed())


if __name__ == "__main__":
    main()
