"""Requests leave no cycles behind, and what others leave is collected at rest."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
from bench.bench_decision import messages, processor, time_answer

from laar.server import garbage
from support import eventually


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_the_life_of_a_request_leaves_no_cycle() -> None:
    picker = processor(5)
    exchanges = [messages(2_000, number) for number in range(20)]
    for each in exchanges:  # what is made once
        await time_answer(picker, each)
    gc.collect()
    for _ in range(5):
        for each in exchanges:
            await time_answer(picker, each)
    assert gc.collect() == 0


class Cycle:
    def __init__(self) -> None:
        self.own = self
        self.more = b""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_LOOK_S", 0.001)


@pytest.mark.usefixtures("quick")
async def test_everything_is_collected_at_rest_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_AT_REST_S", 0.0)
    looked, at_rest = [0], [False]

    def is_at_rest() -> bool:
        looked[0] += 1
        return at_rest[0]

    collecting = asyncio.create_task(garbage.collect_at_rest(is_at_rest))
    gone = weakref.ref(Cycle())
    await eventually(lambda: looked[0] > 5, what="looks")
    assert gone() is not None
    at_rest[0] = True
    await eventually(lambda: gone() is None, what="a collection")
    collecting.cancel()


@pytest.mark.usefixtures("quick")
async def test_a_picker_that_never_rests_collects_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "_LONGEST_S", 0.01)
    collecting = asyncio.create_task(garbage.collect_at_rest(lambda: False))
    gone = weakref.ref(Cycle())
    await eventually(lambda: gone() is None, what="a collection")
    collecting.cancel()


@pytest.mark.usefixtures("quick")
async def test_cycles_do_not_pile_up_under_load() -> None:
    collecting = asyncio.create_task(garbage.collect_at_rest(lambda: False))
    await asyncio.sleep(0)
    cycle = Cycle()
    cycle.more = b"x" * (3 * garbage._GROWN_BYTES)  # zeros would not be resident
    gone = weakref.ref(cycle)
    del cycle
    await eventually(lambda: gone() is None, what="a collection")
    collecting.cancel()
