"""Room at the endpoints follows the picker's counters, and readings unless they are stale."""

from __future__ import annotations

import numpy as np
import pytest

from laar.flow.prefills import Prefills
from laar.flow.saturation import has_room
from laar.flow.settings import FlowSettings
from support.directors import table_of

NAN = float("nan")


COLUMNS = {
    "prefill_s": "seconds",
    "long_prefill_s": "long_seconds",
    "longs": "longs",
    "requests": "in_flight",
    "reported_requests": "running",
    "kv_usage": "kv_usage",
}
NOW = 1000.0


class Fleet:
    """Endpoints that are idle with fresh readings, except for the given columns."""

    def __init__(self, **columns: list[float]) -> None:
        n = len(next(iter(columns.values())))
        table = table_of(*map(str, range(n)))
        self.prefills = Prefills(table)
        self.slots = table.active
        table.waiting[:n] = 0.0
        for name, attribute in COLUMNS.items():
            owner = table if hasattr(table, attribute) else self.prefills
            getattr(owner, attribute)[:n] = columns.get(name, 0.0)
        table.read_at[:n] = NOW - np.array(columns.get("reading_age_s", 0.0))

    def has_room(self, *, is_long: bool = False, shorts_wait: bool = False) -> list[bool]:
        kinds = np.full(len(self.slots), is_long)
        room = has_room(self.prefills, CAPS, self.slots, NOW, kinds, shorts_wait=shorts_wait)
        return room.tolist()


CAPS = FlowSettings(max_prefill_s=2.0, max_requests=10)


def test_each_cap_alone_can_make_an_endpoint_full():
    some = Fleet(
        prefill_s=[0.0, 2.0, 1.9, 0.0, 0.0, 0.0],
        requests=[0.0, 0.0, 9.0, 10.0, 0.0, 0.0],
        kv_usage=[0.0, 0.0, 0.9, 0.0, 0.96, 0.0],
        reported_requests=[0.0, 0.0, 9.0, 0.0, 0.0, 10.0],
    )
    assert some.has_room() == [True, False, True, False, False, False]


@pytest.mark.parametrize("age_s", [3.1, 1e9, float("inf"), NAN])
def test_stale_readings_fill_no_endpoint_but_the_pickers_counters_do(age_s):
    some = Fleet(
        kv_usage=[1.0, 1.0],
        reported_requests=[500.0, 500.0],
        requests=[0.0, 10.0],
        reading_age_s=[age_s, age_s],
    )
    assert some.has_room() == [True, False]


def test_a_full_fleet_without_new_readings_reopens_as_its_requests_end():
    full = Fleet(requests=[10.0] * 3, kv_usage=[1.0] * 3, reading_age_s=[60.0] * 3)
    assert not any(full.has_room())
    drained = Fleet(requests=[9.0] * 3, kv_usage=[1.0] * 3, reading_age_s=[60.0] * 3)
    assert all(drained.has_room())


def test_an_endpoint_without_readings_is_not_full():
    some = Fleet(kv_usage=[NAN, NAN], reported_requests=[NAN, 10.0])
    assert some.has_room() == [True, False]


def test_a_long_prefill_in_flight_leaves_half_of_an_endpoint_to_short_ones():
    some = Fleet(prefill_s=[300.0, 301.0], long_prefill_s=[300.0, 300.0], longs=[1.0, 1.0])
    assert some.has_room() == [True, False]
    assert not any(some.has_room(is_long=True))


def test_each_endpoint_has_at_most_one_long_prefill_while_short_ones_wait():
    some = Fleet(prefill_s=[0.0, 0.5], long_prefill_s=[0.0, 0.5], longs=[0.0, 1.0])
    assert some.has_room(is_long=True, shorts_wait=True) == [True, False]
    assert some.has_room(is_long=True) == [True, True]
