"""Prefills in flight are timed by a clock that readings correct, and their sums stay correct."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.core.endpoints import Reading
from laar.flow.prefills import Prefill, Prefills
from support.directors import table_of
from support.exploring import examples


def add(prefills: Prefills, key: str, seconds: float, now: float, *, shown: bool = False) -> None:
    prefills.add(Prefill(key=key, seconds=seconds, is_long=False, shown=shown), 0, now)


def seconds_at(prefills: Prefills, now: float) -> float:
    prefills.look(now)
    return float(prefills.seconds[0])


def test_unseen_prefills_end_one_after_another_and_idle_time_gives_no_credit() -> None:
    prefills = Prefills(table_of("a"))
    add(prefills, "1", 1.0, 0.0)
    add(prefills, "2", 2.0, 0.5)
    assert [seconds_at(prefills, t) for t in (0.9, 1.1, 2.9, 3.1)] == [3.0, 2.0, 2.0, 0.0]
    add(prefills, "3", 1.0, 100.0)
    assert [seconds_at(prefills, t) for t in (100.9, 101.1)] == [1.0, 0.0]
    assert len(prefills) == 3  # they count until they end
    for key in "123":
        prefills.ended(key)
    assert len(prefills) == 0


def test_a_prefill_whose_first_token_will_be_seen_counts_until_then() -> None:
    prefills = Prefills(table_of("a"))
    add(prefills, "1", 1.0, 0.0, shown=True)
    add(prefills, "2", 1.0, 0.0)
    assert [seconds_at(prefills, t) for t in (1.5, 60.0)] == [2.0, 1.0]
    prefills.answered("1")
    assert seconds_at(prefills, 60.0) == 0.0


def test_requests_waiting_in_an_engine_have_not_begun_but_earlier_ones_have() -> None:
    table = table_of("a")
    prefills = Prefills(table)
    for key in "1234":
        add(prefills, key, 1.0, 0.0)
    assert seconds_at(prefills, 5.0) == 0.0  # by the clock, all have ended
    table.read("a", Reading(waiting=2, running=2), 5.0)
    assert seconds_at(prefills, 5.02) == 2.0
    assert seconds_at(prefills, 6.1) == 1.0
    for key in "5678":
        add(prefills, key, 100.0, 7.0)
    table.read("a", Reading(waiting=0, running=8), 8.0)
    assert seconds_at(prefills, 8.02) == 100.0  # the last one may still run
    for key in "abc":
        add(prefills, key, 1.0, 8.9)
    table.read("a", Reading(waiting=0, running=8), 9.0)  # the page was written before they arrived
    assert seconds_at(prefills, 9.02) == 3.0


def test_only_a_share_of_waiting_requests_counts_if_other_pickers_send() -> None:
    table = table_of("a")
    prefills = Prefills(table)
    for key in "1234":
        add(prefills, key, 1.0, 0.0)
    table.read("a", Reading(waiting=8, running=8), 5.0)
    assert seconds_at(prefills, 5.0) == 2.0


def test_without_readings_prefills_are_estimated_by_the_clock_alone() -> None:
    table = table_of("a")
    prefills = Prefills(table)
    add(prefills, "1", 1.0, 0.0)
    table.read("a", Reading(), 0.5)
    assert [seconds_at(prefills, t) for t in (0.9, 1.1)] == [1.0, 0.0]


def test_a_clock_that_was_set_back_continues_from_there() -> None:
    prefills = Prefills(table_of("a"))
    add(prefills, "1", 1.0, 1000.0)
    assert [seconds_at(prefills, t) for t in (0.0, 0.9, 1.1)] == [1.0, 1.0, 0.0]


_EVENTS = st.tuples(
    st.sampled_from(["add", "answered", "ended", "moved", "read", "look"]),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.01, 0.7, 30.0]),
    st.sampled_from([0.0, 0.005, 0.3, 20.0, 1e6, -0.3, -1e6]),
)


@settings(max_examples=examples(150))
@given(st.lists(_EVENTS, max_size=80))
def test_sums_match_the_counted_requests_and_return_to_zero(
    events: list[tuple[str, int, float, float]],
) -> None:
    table = table_of(*"abc")
    prefills = Prefills(table)
    now, alive = 1e7, dict[str, tuple[float, bool]]()
    for number, (what, which, seconds, step_s) in enumerate(events):
        now += step_s
        key = list(alive)[which % len(alive)] if alive else ""
        if what == "add":
            alive[str(number)] = (seconds, which % 3 == 0)
            one = Prefill(
                key=str(number),
                seconds=seconds,
                is_long=which % 3 == 0,
                shown=which % 4 == 0,
            )
            prefills.add(one, which % 3, now)
        elif what == "read":
            waiting = math.nan if which == 9 else which
            table.read("abc"[which % 3], Reading(waiting=waiting, running=which // 2), now)
        elif what == "moved":
            prefills.moved(key, which % 3, now)
        elif what == "ended":
            prefills.ended(key)
            alive.pop(key, None)
        elif what != "look":
            prefills.answered(key)
        prefills.look(now)
        for sums in (prefills.seconds, prefills.long_seconds, prefills.longs):
            assert sums.min() > -1e-9
        assert (prefills.long_seconds <= prefills.seconds + 1e-9).all()
        assert prefills.seconds.sum() <= sum(s for s, _ in alive.values()) + 1e-9
        assert prefills.longs.sum() <= sum(is_long for _, is_long in alive.values())
        assert 0 <= prefills.counted <= len(prefills) == len(alive)
    for key in alive:
        prefills.ended(key)
    assert len(prefills) == prefills.counted == 0
    for sums in (prefills.seconds, prefills.long_seconds, prefills.longs):
        assert np.abs(sums).max() < 1e-9
