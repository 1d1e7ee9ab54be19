"""What looking costs: recording a decision, the page's feed, a scrape of a large fleet."""

from __future__ import annotations

import asyncio
import time

import orjson

from laar.config import Settings
from laar.core.director import Completion
from laar.core.endpoints import EndpointSpec, Reading
from laar.core.explain import record
from laar.core.request import Api, Request
from laar.server.runner import Runner

END = Completion(status=200, cause="complete", latency_s=1.0, ttft_s=0.2)
VIEWERS = 10


def _runner(endpoints: int) -> Runner:
    document = {"endpoints": [{"address": "10.0.0.1:80", "model": "m"}]}
    runner = Runner(Settings.model_validate(document), seed=1)
    specs = [
        EndpointSpec(address=f"10.{i >> 8}.{i & 255}.1:80", models=(f"model-{i % 5}",))
        for i in range(endpoints)
    ]
    runner.table.replace("bench", specs)
    now = runner._clock()
    for spec in specs:
        runner.table.read(spec.address, Reading(waiting=1, running=2, kv_usage=0.5), now)
        runner.table.round_trip(spec.address, 0.01, now)
    return runner


def _request(i: int) -> Request:
    text = "a question " * 40
    return Request(
        id=f"r-{i}", api=Api.CHAT, model="auto", spans=(text,), question=text, chars=len(text)
    )


def _recording() -> None:
    runner = _runner(5)
    memory, director = runner.watch.memory, runner.director
    decisions = [director.explain(_request(i), 0.0) for i in range(500)]
    for i, decision in enumerate(decisions):
        decision.id = str(i)
    best = {"remember": 1e9, "end": 1e9, "log line": 1e9}
    for _ in range(40):
        began = time.thread_time()
        for decision in decisions:
            memory.decided(decision)
        decided = time.thread_time()
        for decision in decisions:
            memory.settled(decision, END)
        ended = time.thread_time()
        accounts = list(memory.latest(len(decisions)))
        lines = time.thread_time()
        for account in accounts:
            orjson.dumps(record(account))
        wrote = time.thread_time()
        for name, seconds, count in (
            ("remember", decided - began, len(decisions)),
            ("end", ended - decided, len(decisions)),
            ("log line", wrote - lines, len(accounts)),
        ):
            best[name] = min(best[name], seconds / count * 1e6)
    total = sum(best.values())
    parts = ", ".join(f"{name} {us:.1f}" for name, us in best.items())
    print(f"recording a decision, 5 candidates, every one logged: {total:.1f} us ({parts}); <= 15")


def _decide(runner: Runner, count: int) -> None:
    for i in range(count):
        decision = runner.director.decide(_request(i), runner._clock())
        runner.director.settle(decision, END)


async def _feed() -> None:
    """CPU of making frames and sending them to viewers over loopback HTTP."""
    from laar.server.admin import AdminServer

    runner = _runner(20)
    _decide(runner, 3000)
    server = AdminServer(runner.watch.feed, "127.0.0.1", 0)
    tasks = [
        asyncio.create_task(server.run_until_stopped()),
        asyncio.create_task(runner.watch.feed.run()),
    ]
    viewers = []
    for _ in range(VIEWERS):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n")
        viewers.append((reader, writer))
        tasks.append(asyncio.create_task(_swallow(reader)))
    await asyncio.sleep(1.5)
    seconds, busy = 5.0, time.process_time()
    await asyncio.sleep(seconds)
    share = (time.process_time() - busy) / seconds
    print(
        f"the feed, {VIEWERS} viewers, 20 endpoints, 2,000 decisions remembered: "
        f"{share:.1%} of a core, the viewers' own reading included; <= 5 %"
    )
    runner.watch.feed.close()
    server.should_exit = True
    for _, writer in viewers:
        writer.close()
    await tasks[0]
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _swallow(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


def _frame(endpoints: int) -> None:
    runner = _runner(endpoints)
    _decide(runner, 2500)
    began = time.thread_time()
    for _ in range(5):
        body = orjson.dumps(runner.watch.board.frame(runner._clock()))
    took = (time.thread_time() - began) / 5
    print(f"one frame, {endpoints} endpoints: {took * 1e3:.1f} ms, {len(body) / 1e3:.0f} kB")


def _scrape() -> None:
    runner = _runner(1000)
    _decide(runner, 100)
    times = []
    for _ in range(7):
        began = time.thread_time()
        page = runner.metrics.page()
        times.append(time.thread_time() - began)
    took = sorted(times)[len(times) // 2] * 1e3
    print(f"a scrape, 1,000 endpoints, {len(page) / 1e3:.0f} kB: {took:.1f} ms; <= 50")


def main() -> None:
    _recording()
    _frame(20)
    _frame(1000)
    _scrape()
    asyncio.run(_feed())


if __name__ == "__main__":
    main()
