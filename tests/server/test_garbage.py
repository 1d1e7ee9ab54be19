"""Requests leave no cycles, and other cycles are collected while idle."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Iterator

import pytest
from bench.bench_decision import messages, processor, time_answer

from laar.server import memory
from laar.server.h2.connection import Connection
from support import Answer, eventually


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_a_request_leaves_no_reference_cycle() -> None:
    picker = processor(5)
    exchanges = [messages(2_000, number) for number in range(20)]
    for each in exchanges:  # fills caches that are kept
        await time_answer(picker, each)
    gc.collect()
    for _ in range(5):
        for each in exchanges:
            await time_answer(picker, each)
    assert gc.collect() == 0


async def _asked(http, upstream, url, number) -> None:
    """Run one exchange after another, each of a different kind."""
    chat = {"model": "m", "messages": [{"role": "user", "content": f"{number}"}]}
    long = {"model": "m", "messages": [{"role": "user", "content": f"{number} " * 60_000}]}
    unknown = {"model": "none", "messages": []}
    for body in (chat, long, unknown, {}):
        async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
            await answer.read()
    async with http.get(f"{url}/v1/models") as answer:
        await answer.read()
    upstream.script(Answer(status=503), Answer(status=429, headers={"retry-after": "0"}))
    async with http.post(f"{url}/v1/chat/completions", json=chat) as answer:
        await answer.read()
    gone = asyncio.Event()

    class Chunks:
        """May be sent twice, as a probe may ask at the same time."""

        async def __aiter__(self):
            yield b"data: {}\n\n"
            await gone.wait()

    upstream.chat_answer = Answer.sse(Chunks())
    answer = await http.post(f"{url}/v1/chat/completions", json={**chat, "stream": True})
    await answer.content.readany()
    answer.close()  # in the middle of the answer
    gone.set()
    upstream.chat_answer = None


def no_connection() -> bool:
    return not any(type(each) is Connection for each in gc.get_objects())


@pytest.mark.envoy
@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_a_stream_leaves_no_reference_cycle(gateway, http, shape) -> None:
    """However the stream or its connection ends: only a full collection would free a cycle."""
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    runner = await gateway.picker(flow={"enabled": True}, bodies={"sample_answers": 0.5})
    envoy = await gateway.envoy(shape)
    metrics = runner.picker.metrics
    for number in range(2):
        await _asked(http, upstream, envoy.url(), number)
    await eventually(lambda: metrics.streams_open == 0, what="the streams' ends")
    gc.collect()
    for number in range(20):
        await _asked(http, upstream, envoy.url(), number)
    await eventually(lambda: metrics.streams_open == 0, what="the streams' ends")
    await envoy.stop()
    await eventually(no_connection, what="the connections' ends")
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    kinds = Counter(f"{type(each).__module__}.{type(each).__name__}" for each in gc.garbage)
    gc.set_debug(0)
    gc.garbage.clear()
    assert not [kind for kind in kinds if kind.startswith(("laar.", "jh2."))]


class Cycle:
    def __init__(self) -> None:
        self.own = self
        self.more = b""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_LOOK_S", 0.001)


@pytest.mark.usefixtures("quick")
async def test_full_collections_run_only_while_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_AT_REST_S", 0.0)
    looked, at_rest = [0], [False]

    def is_at_rest() -> bool:
        looked[0] += 1
        return at_rest[0]

    collecting = asyncio.create_task(memory.collect_at_rest(is_at_rest))
    gone = weakref.ref(Cycle())
    await eventually(lambda: looked[0] > 5, what="some checks for rest")
    assert gone() is not None
    at_rest[0] = True
    await eventually(lambda: gone() is None, what="a collection")
    collecting.cancel()


@pytest.mark.usefixtures("quick")
async def test_cycles_do_not_pile_up_under_load() -> None:
    collecting = asyncio.create_task(memory.collect_at_rest(lambda: False))
    await asyncio.sleep(0)
    cycle = Cycle()
    cycle.more = b"x" * (3 * memory._GROWN_BYTES)  # pages of zeros would not be resident
    gone = weakref.ref(cycle)
    del cycle
    await eventually(lambda: gone() is None, what="a collection")
    collecting.cancel()
