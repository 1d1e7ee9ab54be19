"""Room at the endpoints follows the picker's counters, and readings unless they are stale."""

from __future__ import annotations

import numpy as np
import pytest

from laar.errors import SettingError
from laar.flow.saturation import Loads, Saturation

NAN = float("nan")


def loads(**columns: list[float]) -> Loads:
    """Return the loads of idle endpoints with fresh readings, except for the given columns."""
    n = len(next(iter(columns.values())))
    names = (
        "prefill_s",
        "long_prefill_s",
        "requests",
        "longs",
        "reported_requests",
        "kv_usage",
        "reading_age_s",
    )
    return Loads(**{name: np.array(columns.get(name, [0.0] * n)) for name in names})


CAPS = Saturation(max_prefill_s=2.0, max_requests=10)


def test_each_cap_alone_closes_an_endpoint():
    some = loads(
        prefill_s=[0.0, 2.0, 1.9, 0.0, 0.0, 0.0],
        requests=[0.0, 0.0, 9.0, 10.0, 0.0, 0.0],
        kv_usage=[0.0, 0.0, 0.9, 0.0, 0.96, 0.0],
        reported_requests=[0.0, 0.0, 9.0, 0.0, 0.0, 10.0],
    )
    assert CAPS.has_room(some).tolist() == [True, False, True, False, False, False]


def test_the_level_is_that_of_the_fullest_cap():
    some = loads(prefill_s=[1.0], requests=[2.0], kv_usage=[0.76])
    assert CAPS.levels(some).tolist() == [pytest.approx(0.8)]


@pytest.mark.parametrize("age_s", [3.1, 1e9, float("inf"), NAN])
def test_a_stale_reading_closes_nothing_but_the_counters_of_the_picker_do(age_s):
    some = loads(
        kv_usage=[1.0, 1.0],
        reported_requests=[500.0, 500.0],
        requests=[0.0, 10.0],
        reading_age_s=[age_s, age_s],
    )
    assert CAPS.has_room(some).tolist() == [True, False]


def test_a_full_fleet_without_new_readings_reopens_as_its_requests_end():
    full = loads(requests=[10.0] * 3, kv_usage=[1.0] * 3, reading_age_s=[60.0] * 3)
    assert not CAPS.has_room(full).any()
    drained = loads(requests=[9.0] * 3, kv_usage=[1.0] * 3, reading_age_s=[60.0] * 3)
    assert CAPS.has_room(drained).all()


def test_a_missing_reading_closes_nothing():
    some = loads(kv_usage=[NAN, NAN], reported_requests=[NAN, 10.0])
    assert CAPS.has_room(some).tolist() == [True, False]


def test_a_long_prefill_in_flight_leaves_half_of_an_endpoint_to_short_ones():
    some = loads(prefill_s=[300.0, 301.0], long_prefill_s=[300.0, 300.0], longs=[1.0, 1.0])
    assert CAPS.has_room(some).tolist() == [True, False]
    assert not CAPS.has_room(some, is_long=True).any()


def test_each_endpoint_has_at_most_one_long_prefill_while_short_ones_wait():
    some = loads(prefill_s=[0.0, 0.5], long_prefill_s=[0.0, 0.5], longs=[0.0, 1.0])
    assert CAPS.has_room(some, is_long=True, shorts_wait=True).tolist() == [True, False]
    assert CAPS.has_room(some, is_long=True).tolist() == [True, True]


def test_an_idle_endpoint_takes_a_prompt_larger_than_its_cap():
    """The request's own work must not count against its room, or it would never run."""
    assert CAPS.has_room(loads(prefill_s=[0.0]), is_long=True, shorts_wait=True).all()


@pytest.mark.parametrize("field", ["max_prefill_s", "max_requests"])
@pytest.mark.parametrize("value", [0, -1, NAN])
def test_caps_that_admit_nothing_are_rejected(field, value):
    with pytest.raises(SettingError, match="flow"):
        Saturation(**{field: value})
