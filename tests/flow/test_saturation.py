"""Room at the endpoints follows the picker's counters, and readings unless they are stale."""

from __future__ import annotations

import numpy as np
import pytest

from laar.flow.saturation import Long, has_room, longs_at
from laar.flow.settings import FlowSettings
from laar.speeds.engines import Engines
from laar.speeds.traffic import Elsewhere
from support.directors import table_of

NAN = float("nan")
COLUMNS = {
    "prefill_s": "own_ahead_s",
    "unseen_s": "unseen_s",
    "requests": "in_flight",
    "reported_requests": "running",
    "kv_usage": "kv_usage",
}
NOW = 1000.0
INF = float("inf")


class Fleet:
    """Endpoints that are idle with fresh readings, except for the given columns.

    Their c(m) is exact, and `longs` are long prompts in flight: slot, seconds, and expected end.
    """

    def __init__(self, *longs: Long, **columns: list[float]) -> None:
        n = len(next(iter(columns.values())))
        self.table = table = table_of(*map(str, range(n)))
        self.engines = Engines(table)
        self.slots = table.active
        assert (self.engines.reads(self.slots) == 1.0).all()
        table.waiting[:n] = 0.0
        for name, attribute in COLUMNS.items():
            owner = table if hasattr(table, attribute) else self.engines.traffic
            getattr(owner, attribute)[:n] = columns.get(name, 0.0)
        self.engines.traffic.free_at[:n] = NOW + np.array(columns.get("free_in_s", 0.0))
        table.read_at[:n] = NOW - np.array(columns.get("reading_age_s", 0.0))
        self.longs = longs

    def has_room(
        self, *, is_long: bool = False, shorts_wait: bool = False, now: float = NOW
    ) -> list[bool]:
        kinds = np.full(len(self.slots), is_long)
        room = has_room(
            self.table,
            self.engines,
            CAPS,
            self.slots,
            now,
            kinds,
            longs_at(self.longs, self.engines, self.slots, now),
            shorts_wait=shorts_wait,
        )
        return room.tolist()


CAPS = FlowSettings(max_prefill_s=2.0, max_requests=10)


def test_reaching_any_single_limit_makes_an_endpoint_full():
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


def test_without_new_readings_a_full_fleet_has_room_again_once_requests_end():
    full = Fleet(requests=[10.0] * 3, kv_usage=[1.0] * 3, reading_age_s=[60.0] * 3)
    assert not any(full.has_room())
    drained = Fleet(requests=[9.0] * 3, kv_usage=[1.0] * 3, reading_age_s=[60.0] * 3)
    assert all(drained.has_room())


def test_seconds_of_unseen_prefills_pass_and_are_at_most_those_of_requests_in_flight():
    some = Fleet(unseen_s=[3.0, 3.0, 1.0], free_in_s=[2.5, 1.5, 600.0])
    assert some.has_room() == [False, True, True]
    assert some.has_room(now=NOW + 0.6) == [True, True, True]
    assert some.has_room(now=0.0) == [False, False, True]  # a clock that was set back


def test_prefills_of_other_pickers_do_not_fill_an_endpoint():
    some = Fleet(prefill_s=[0.0])
    theirs = Elsewhere(ahead_s=100.0, unseen_s=100.0, sent=2.0, sent_s=200.0, hidden_s=100.0)
    some.engines.elsewhere(0, NOW, theirs)
    assert some.has_room() == [True]


def test_a_long_prefill_in_flight_leaves_half_of_an_endpoint_to_short_ones():
    longs = [Long(slot, 300.0, INF) for slot in (0, 1)]
    some = Fleet(*longs, prefill_s=[300.9, 301.0])
    assert some.has_room() == [True, False]
    assert not any(some.has_room(is_long=True))


def test_short_prompts_behind_a_long_one_fill_an_endpoint_even_when_it_is_nearly_done():
    longs = [Long(slot, 300.0, NOW + 3.0) for slot in (0, 1)]
    some = Fleet(*longs, unseen_s=[301.0, 300.9], free_in_s=[4.0, 3.9])
    assert some.has_room() == [False, True]


def test_a_long_prompt_is_prefilled_when_earlier_answers_end_early_or_its_time_has_passed():
    longs = [Long(slot, 1.0, NOW + 9.0) for slot in (0, 1, 2)] + [Long(3, 1.0, NOW)]
    some = Fleet(*longs, unseen_s=[1.0] * 4, free_in_s=[9.0, 0.5, 0.0, 0.0])
    counts, left_s = longs_at(some.longs, some.engines, some.slots[::-1], NOW)
    assert (counts.tolist(), left_s.tolist()) == ([0, 0, 1, 1], [0.0, 0.0, 0.5, 1.0])


def test_each_endpoint_has_at_most_one_long_prefill_while_short_ones_wait():
    some = Fleet(Long(1, 0.5, INF), prefill_s=[0.0, 0.5])
    assert some.has_room(is_long=True, shorts_wait=True) == [True, False]
    assert some.has_room(is_long=True) == [True, True]
