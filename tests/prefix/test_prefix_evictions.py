"""Prefixes that return after they were evicted are counted by age."""

from __future__ import annotations

import sys
from array import array

import numpy as np
import pytest

from laar.prefix import evictions as module
from laar.prefix.beliefs import BYTES_PER_TOKEN, PrefixBeliefs
from laar.prefix.blocks import Chain, blocks_in
from laar.prefix.demand import PrefixDemand
from laar.prefix.evictions import MAX_SHARE, Evictions

PROMPT_BYTES = 65_536


def chain_of(name: int, total_bytes: int = PROMPT_BYTES) -> Chain:
    blocks = blocks_in(total_bytes)
    return Chain(array("Q", [name * 100_000 + at for at in range(1, blocks + 1)]), total_bytes)


def share_at(evictions: Evictions, age_s: float) -> float:
    return float(evictions.again(np.array([age_s]))[0])


def test_the_share_counts_text_that_returns_before_its_age_doubles() -> None:
    evictions = Evictions()
    uses: list[tuple[float, int]] = []
    for second in range(200):  # every second prompt returns 40 s after its first use
        uses.append((float(second), second))
        if second >= 40 and second % 2:
            uses.append((float(second), second - 40))
    for at, name in uses:
        evictions.note(chain_of(name), at)
    old = [
        next((later - at for later, other in uses if other == name and later > at), 1e9)
        for at, name in uses
        if at < 199.0 - 64.0  # later uses may still return within the octave from 32 s
    ]
    at_risk = [gap for gap in old if gap >= 32.0]
    share = sum(gap < 64.0 for gap in at_risk) / len(at_risk)
    assert share_at(evictions, 32.0) == pytest.approx(share, abs=0.08)
    assert share_at(evictions, 4.0) == share_at(evictions, 8.0) == share_at(evictions, 64.0) == 0.0
    # In the middle of the octave.
    assert 0.0 < share_at(evictions, 38.0) < share_at(evictions, 32.0)
    assert share_at(evictions, float("inf")) == 0.0


def test_a_continuing_turn_counts_as_a_return_of_the_earlier_text() -> None:
    evictions = Evictions()
    for turn in range(1, 60):
        for name in range(5):
            whole = chain_of(name, PROMPT_BYTES + 2000 * turn)
            evictions.note(whole, 10.0 * turn)
    assert share_at(evictions, 8.0) == MAX_SHARE


def test_a_few_prompts_are_weak_evidence_and_are_forgotten() -> None:
    evictions = Evictions()
    evictions.note(chain_of(1, 8192), 0.0)
    evictions.note(chain_of(1, 8192), 10.0)
    assert share_at(evictions, 8.0) < 0.1
    for number in range(60):
        evictions.note(chain_of(1), 100.0 + 10.0 * number)
    seen = share_at(evictions, 8.0)
    for number in range(60):  # from now on no prefix returns
        evictions.note(chain_of(1000 + number), 800.0 + 10.0 * number)
    assert share_at(evictions, 8.0) < 0.1 < seen


@pytest.mark.parametrize("now", [float("nan"), float("inf"), -float("inf"), -1e300, 1e300])
def test_the_share_stays_within_bounds_whatever_the_clock(now: float) -> None:
    evictions = Evictions()
    for moment in (1000.0, now, 999.0, now, 2000.0):
        evictions.note(chain_of(1), moment)
        for age_s in (moment, 0.0, -1.0, 10.0, float("nan")):
            assert 0.0 <= share_at(evictions, age_s) <= MAX_SHARE


def test_the_number_of_remembered_prompts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROMPTS", 1000)
    evictions = Evictions()
    for name in range(1500):
        evictions.note(chain_of(name, 1024), 0.001 * name)
    assert len(evictions._age_of) == 1000


def test_a_prompt_costs_others_only_if_it_evicts_text_that_will_return() -> None:
    beliefs = PrefixBeliefs(key=b"test", max_bytes=8 << 20)
    beliefs.make_room(3)
    for slot in (0, 1, 2):
        beliefs.set_capacity(slot, 8 * PROMPT_BYTES / BYTES_PER_TOKEN)
    empty, busy, stale = 0, 1, 2
    for name in range(8):
        beliefs.settle(beliefs.insert(stale, chain_of(100 + name), 0.0), None)
    for turn in range(20):
        for name in range(8):
            beliefs.settle(beliefs.insert(busy, chain_of(name), 1000.0 + 10.0 * turn), None)
    fresh = chain_of(999)
    again = beliefs.again(fresh, np.zeros(3), 1199.0)
    assert again is not None
    assert again[busy] > 0.5
    assert again[empty] == 0.0
    assert again[stale] == 0.0


@pytest.mark.parametrize("counter", [Evictions, PrefixDemand])
def test_the_first_prompt_after_a_pause_is_noted_in_bounded_time(counter) -> None:
    counts, calls = counter(), 0
    for number in range(2_000):
        counts.note(chain_of(number, 20_000), 1.0)

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "c_call"

    sys.setprofile(count)
    try:
        counts.note(chain_of(9_999, 20_000), 3_000.0)
    finally:
        sys.setprofile(None)
    assert calls < 20_000
