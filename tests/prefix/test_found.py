"""Beliefs about caches are corrected by what engines find, down to nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.blocks import Chain
from laar.prefix.index import LEAST_MISS_BYTES

PROMPTS = ["a" * 20_000, "b" * 20_000, "a" * 20_000 + "c" * 2000]


class Picker:
    """Beliefs about some engines, which find a share of what is believed."""

    def __init__(self, slots: int = 3, *, reports: bool = True):
        self.beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 20)
        self.beliefs.make_room(slots)
        self.reports, self.queries, self.hits, self.now = reports, 0.0, 0.0, 0.0

    def chain(self, text: str) -> Chain:
        return self.beliefs._hasher.chain_of(text.encode(), "", 0)

    def believed(self, slot: int, text: str) -> float:
        return float(self.beliefs.match(self.chain(text))[0][slot])

    def read(self, slot: int) -> None:
        self.beliefs.found.count(slot, self.queries, self.hits)

    def answer(self, slot: int, text: str, reuses: bool) -> None:
        self.now += 1.0
        self.read(slot)
        receipt = self.beliefs.insert(slot, self.chain(text), self.now)
        share = receipt.chain.fraction(receipt.proven) if reuses else 0.0
        self.queries += 5000.0
        self.hits += 5000.0 * share
        self.beliefs.settle(receipt, share if self.reports else None)
        self.read(slot)


@given(st.booleans(), st.lists(st.sampled_from(PROMPTS), min_size=10, max_size=30))
def test_an_engine_that_reuses_nothing_is_soon_believed_to_hold_nothing(reports, asked):
    picker = Picker(reports=reports)
    for text in asked:
        picker.answer(0, text, reuses=False)
    assert picker.believed(0, asked[-1]) < 0.15
    if len(asked) >= 20:
        assert picker.believed(0, asked[-1]) < 0.02
    for _ in range(12):  # caching is switched on
        picker.answer(0, asked[-1], reuses=True)
    assert picker.believed(0, asked[-1]) > 0.8


@given(st.booleans(), st.lists(st.sampled_from(PROMPTS), max_size=30))
def test_an_engine_that_reuses_is_believed_as_before(reports, asked):
    picker = Picker(reports=reports)
    for text in asked:
        picker.answer(0, text, reuses=True)
    assert picker.beliefs.found.shares.tolist() == [1.0] * 3


def test_engines_alike_are_expected_to_find_as_little():
    """Else those that have not answered yet would get all requests."""
    picker = Picker()
    picker.beliefs.found.alike = lambda slot: np.array([0, 1] if slot < 2 else [2])
    for _ in range(10):
        picker.answer(0, PROMPTS[0], reuses=False)
        picker.answer(2, PROMPTS[0], reuses=True)
    picker.answer(1, PROMPTS[0], reuses=True)
    assert picker.believed(1, PROMPTS[0]) < 0.3
    assert picker.believed(2, PROMPTS[0]) > 0.9
    for _ in range(12):
        picker.answer(1, PROMPTS[0], reuses=True)
    assert picker.believed(1, PROMPTS[0]) > 0.8
    picker.beliefs.drop(0)
    assert picker.beliefs.found.shares[0] == 1.0


def test_others_hits_and_short_prompts_disprove_nothing():
    picker = Picker(reports=False)
    for _ in range(5):
        receipt = picker.beliefs.insert(0, picker.chain(PROMPTS[0]), picker.now)
        picker.queries, picker.hits = picker.queries + 9.0, picker.hits + 1.0
        picker.beliefs.settle(receipt, None)
        picker.read(0)
    short = Picker()
    for _ in range(5):
        short.answer(0, "a" * (LEAST_MISS_BYTES - 500), reuses=False)
    for one in (picker, short):
        assert one.beliefs.found.shares[0] == pytest.approx(1.0)


@pytest.mark.parametrize("seen", ["", "answer", "counter", "snapshot"])
def test_prompts_in_flight_count_as_cached_unless_nothing_is_ever_found(seen):
    picker = Picker()
    beliefs, chain = picker.beliefs, picker.chain(PROMPTS[2])
    beliefs.settle(beliefs.insert(0, chain, 0.0), None)
    sent = [beliefs.insert(0, picker.chain(PROMPTS[0]), 0.5)]
    assert picker.believed(0, PROMPTS[2]) > 0.85  # nothing is known yet
    beliefs.settle(sent[0], None, 4_000)
    if seen == "answer":
        beliefs.settle(beliefs.insert(0, chain, 1.0), 0.9)
    elif seen == "counter":
        beliefs.found.count(0, 9.0, 1.0)
    elif seen == "snapshot":
        beliefs.restore(0, beliefs.state(0)._replace(found=[1.0, 1.0, 1.0]))
    assert picker.believed(0, PROMPTS[2]) > 0.85
    sent = [beliefs.insert(0, picker.chain(text), 2.0) for text in (PROMPTS[0], PROMPTS[1])]
    held = picker.believed(0, PROMPTS[2])  # the part that no other request shares is
    assert held > 0.85 if seen else 0.05 < held < 0.15
    for receipt in sent:
        beliefs.settle(receipt, None)
    assert picker.believed(0, PROMPTS[2]) > 0.85
