"""Gauges that nothing confirms keep no requests away; engines that are full get none."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from laar.core.filters import unsaturated
from laar.fleet.endpoints import EndpointTable, Reading
from laar.fleet.membership import EndpointSpec
from laar.fleet.witness import STILL_S

MAX_WAITING = 128
STILL = math.ceil(STILL_S)  # readings, one a second


class Engine:
    """An endpoint whose page has offsets that are no load, and other clients of its own."""

    def __init__(self, table, name, offsets, *, counts=True, alive=True):
        self.table, self.name, self.offsets = table, name, offsets
        self.counts, self.alive = counts, alive  # whether its page has counters, and live gauges
        self.others, self.queued, self.work = 0, 0, 0.0
        self.done = 0

    @property
    def slot(self):
        return self.table.slot(self.name)

    def serve(self, wanted):
        """Take up to `wanted` requests, and end those of the last second."""
        slot = self.slot
        while self.table.in_flight[slot]:
            self.table.release(slot, 1.0, 1.0)
            self.done += 1
        for _ in range(wanted):
            self.table.decisions += 1
            self.table.chosen[slot] = self.table.decisions
            self.table.reserve(slot, 1.0, 1.0)

    def show(self, now):
        busy = self.others + self.table.in_flight[self.slot]
        self.work += 17.0 * busy
        waiting, running, kv = self.offsets
        self.table.read(
            self.name,
            Reading(
                waiting=waiting + self.alive * self.queued,
                running=running + self.alive * busy,
                kv_usage=min(1.0, kv + self.alive * busy / 1000.0),
                work=self.work if self.counts else math.nan,
            ),
            now,
        )


def fleet(*names):
    table = EndpointTable()
    table.replace("test", [EndpointSpec(address=name, models=("m",)) for name in names])
    return table


def open_to(engine, now):
    return bool(unsaturated(engine.table, engine.table.active, MAX_WAITING, now)[engine.slot])


OFFSETS = st.tuples(
    st.sampled_from([0.0, 3.0, 200.0, 1e6, math.nan]),
    st.sampled_from([0.0, 1.0, 40.0, 500.0, math.nan]),
    st.sampled_from([0.0, 0.5, 0.99, 1.0, math.nan]),
)


@given(OFFSETS, st.booleans(), st.booleans(), st.lists(st.integers(0, 6), min_size=20, max_size=40))
def test_an_idle_engine_gets_its_share_whatever_its_gauges_show(offsets, counts, alive, requests):
    engine = Engine(fleet("a:1"), "a:1", offsets, counts=counts, alive=alive)
    for now, wanted in enumerate(requests):
        engine.show(float(now))
        is_open = open_to(engine, float(now))
        assert is_open or now < STILL
        engine.serve(wanted if is_open else 0)


@given(st.booleans(), st.lists(st.integers(0, 6), min_size=20, max_size=40))
def test_no_load_of_a_healthy_page_is_ignored(counts, requests):
    engine = Engine(fleet("a:1"), "a:1", (0.0, 0.0, 0.0), counts=counts)
    for now, wanted in enumerate([*[0] * STILL, *requests]):
        engine.show(float(now))
        assert not any(engine.table.ignored(engine.slot))
        engine.serve(wanted)


@given(st.booleans(), st.lists(st.integers(130, 1000), min_size=40, max_size=40, unique=True))
def test_an_engine_that_others_fill_gets_no_requests(counts, queued):
    """Its gauges move, or stand still while its counters move."""
    engine = Engine(fleet("a:1"), "a:1", (0.0, 0.0, 0.0), counts=counts)
    engine.others = 40
    for now, waiting in enumerate(queued):
        engine.queued = 130 if counts else waiting
        engine.show(float(now))
        assert not open_to(engine, float(now))


@given(st.integers(1, 20), st.booleans(), st.integers(0, 3))
def test_load_that_has_gone_keeps_requests_away_for_three_readings(busy_s, counts, ours):
    """All requests are aborted, and the gauges stay until the engine's next step."""
    table = fleet("a:1")
    engine = Engine(table, "a:1", (0.0, 0.0, 0.0), counts=counts)
    engine.serve(ours)
    for now in range(busy_s):
        engine.others, engine.queued = 40 + now, 200 + now
        engine.show(float(now))
    shown = [table.waiting[0] + 0.0, table.running[0] + 0.0, table.kv_usage[0] + 0.0]
    engine.serve(0)
    engine.others = engine.queued = 0
    engine.offsets, engine.alive = shown, False
    for now in range(busy_s, busy_s + STILL + 2):
        engine.show(float(now))
    assert open_to(engine, now)
    engine.serve(1)
    engine.offsets, engine.alive = (0.0, 0.0, 0.0), True  # it takes a step
    engine.show(now + 1.0)
    assert (table.waiting[0], table.running[0]) == (0.0, 1.0)


@given(st.integers(1, 5), st.integers(STILL, 30))
def test_an_engine_that_hangs_with_our_requests_stays_shut(ours, hangs_s):
    table = fleet("a:1")
    engine = Engine(table, "a:1", (200.0, 40.0, 0.99))
    engine.serve(ours)
    engine.show(0.0)
    for now in range(1, hangs_s):
        table.read(
            "a:1", Reading(waiting=200.0, running=40.0, kv_usage=0.99, work=engine.work), now
        )
        assert not open_to(engine, now)


@given(st.lists(st.tuples(st.floats(0.985, 0.994), st.integers(0, 6)), min_size=20, max_size=40))
def test_a_gauge_that_trembles_while_no_counter_moves_is_no_load(readings):
    engine = Engine(fleet("a:1"), "a:1", (0.0, 0.0, 0.99), alive=False)
    for now, (kv, wanted) in enumerate(readings):
        engine.offsets = 0.0, 0.0, kv
        engine.show(float(now))
        is_open = open_to(engine, float(now))
        assert is_open or now <= STILL
        engine.serve(wanted if is_open else 0)
