"""Long work leaves every turn of the event loop to requests after a slice, whatever its size."""

import asyncio
from collections import Counter
from types import SimpleNamespace as Fake

import msgspec
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from laar import slices
from laar.accuracy.reports import Verdict
from laar.datalayer.kv_batches import Groups
from laar.datalayer.kv_events import KvEvents
from laar.server.admin import outcomes
from laar.server.sharing.sharer import Sharer
from laar.sharing.batches import MAX_RECORDS
from laar.telemetry.log import DecisionLog
from support.pickers import all_batches, request, sharing_picker

SLICE = PIECE = 10
"""Units of work in a slice, and in a piece that is never divided: an event of 4,096 blocks."""


@pytest.fixture(autouse=True)
def _units(monkeypatch):
    monkeypatch.setattr(slices, "SLICE_S", float(SLICE))


class Meter:
    """Counts units of work, each of which takes a second by its clock."""

    def __init__(self):
        self.done, self.longest = 0, 0

    def clock(self):
        return float(self.done)

    def add(self, units=1):
        self.done += units

    async def watch(self, work):
        """Do the work; set `longest` to the most units in a turn of the event loop."""
        working = asyncio.ensure_future(work)
        while not working.done():
            before = self.done
            await asyncio.sleep(0)
            self.longest = max(self.longest, self.done - before)
        await working


async def reports(meter, size, _tmp_path):
    report = lambda *_: meter.add() or Verdict.UNKNOWN  # noqa: E731
    learning = Fake(clock=meter.clock, reports=Fake(report=report))
    routes = outcomes.routes(learning, Fake(), listen="127.0.0.1:9090", token=lambda: None)
    body = orjson.dumps({"outcomes": [{"decision_id": "d", "correct": True}] * size})

    async def receive():
        return {"type": "http.request", "body": body}

    sent = Request({"type": "http", "method": "POST", "headers": []}, receive)
    return len(orjson.loads((await routes[-1].endpoint(sent)).body)["verdicts"])


async def log_lines(meter, size, tmp_path):
    log = DecisionLog(tmp_path / "log", on_problem=lambda _: None)
    log._line = lambda entry: meter.add() or entry
    for _ in range(size):
        log.add(b"{}\n")
    await log.flush()
    return log.lines["written"]


async def kv_blocks(meter, size, _tmp_path):
    """An event of all blocks, then one event for each of ten."""
    count = size * 4096 // PIECE
    hashes = list(range(count))
    many = [["BlockRemoved", [at]] for at in hashes[:: max(1, count // 10)]]
    removed = lambda _key, found, *_, **_more: meter.add(-(-len(found) * PIECE // 4096))  # noqa: E731
    events = KvEvents(list, Fake(removed=removed))
    payload = msgspec.msgpack.encode([0.0, [["BlockRemoved", hashes], *many]])
    await events._pass_on("a", payload, Groups())
    events._context.destroy()
    return size


async def records(meter, size, _tmp_path):
    sender, taker = (sharing_picker(each, ["a:1"]) for each in ("one", "two"))
    for number in range(min(size, MAX_RECORDS)):
        sender.director.decide(request(number=str(number)), 1.0)
    taker._take = lambda *_, **_more: meter.add()
    sharer = Fake(bytes=Counter(), sharing=taker, _clock=lambda: 1.0)
    await Sharer._take(sharer, [(data, 0.0) for data in all_batches(sender, 1.0)])
    return min(size, MAX_RECORDS)


@pytest.mark.parametrize("work", [reports, log_lines, kv_blocks, records])
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(1, 300))
@example(size=300)
def test_a_turn_has_a_bounded_amount_of_work(work, size, tmp_path_factory, monkeypatch):
    meter = Meter()
    with monkeypatch.context() as patch:
        patch.setattr(slices, "monotonic", meter.clock)
        asyncio.run(meter.watch(measured(work, meter, size, tmp_path_factory.mktemp("log"))))
    assert meter.longest < SLICE + PIECE


async def measured(work, meter, size, tmp_path):
    assert 0 < await work(meter, size, tmp_path) <= meter.done


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(costs=st.lists(st.integers(0, 20), max_size=50))
def test_a_slice_ends_after_the_step_that_exceeds_it(costs):
    meter = Meter()

    async def work():
        slice_ = slices.Slice(meter.clock)
        for cost in costs:
            meter.add(cost)
            await slice_.step()

    asyncio.run(meter.watch(work()))
    assert meter.longest < SLICE + max(1, *costs, 1)
    assert meter.done == sum(costs)
