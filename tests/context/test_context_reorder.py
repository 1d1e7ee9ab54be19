"""Documents in, documents in a better order out, by conversation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.context.notes import order_note
from laar.context.reorder import Reorderer
from laar.errors import SettingError
from support.exploring import examples


def text(i):
    return f"Text number {i}. " + "word " * 60


def texts(ids):
    return [text(i) for i in ids]


def test_a_later_context_follows_an_earlier_one_and_says_how_it_came():
    r = Reorderer()
    first = r.reorder(texts([2, 1, 4]), now=0.0)
    assert (first.order, first.note, first.repeated) == ((0, 1, 2), "", ())
    second = r.reorder(texts([1, 9, 4, 2]), now=1.0)
    assert second.documents == tuple(texts([2, 1, 4, 9]))
    assert second.order == (3, 0, 2, 1)
    assert second.matched == 3
    assert second.note == order_note([None] * 4, [1, 3, 2, 0])


def test_a_conversation_is_not_given_a_document_twice():
    """The paper's section 6: turn 1 holds 1, 2, 4 and turn 2 asks for 1, 5, 2."""
    r = Reorderer()
    r.reorder(texts([1, 2, 4]), now=0.0, conversation="c")
    again = r.reorder(texts([1, 5, 2]), now=1.0, conversation="c")
    assert again.repeated == (0, 2)
    assert again.documents[1] == text(5)
    assert "Text number 1" in again.documents[0]
    assert len(again.documents[0]) < len(text(1))
    third = r.reorder(texts([5, 7]), now=2.0, conversation="c")
    assert third.repeated == (0,)


def test_other_conversations_tenants_and_those_forgotten_get_all():
    r = Reorderer(ttl_s=10.0)
    r.reorder(texts([1, 2, 4]), now=0.0, conversation="c")
    assert not r.reorder(texts([1, 2]), now=1.0, conversation="d").repeated
    assert not r.reorder(texts([1, 2]), now=1.0, conversation="c", tenant="t").repeated
    assert not r.reorder(texts([1, 2]), now=1.0, conversation="c", deduplicate=False).repeated
    assert not r.reorder(texts([1, 2]), now=99.0, conversation="c").repeated


def test_equal_and_too_many_documents_are_refused():
    with pytest.raises(SettingError):
        Reorderer().reorder(["x", "x"], now=0.0)
    with pytest.raises(SettingError):
        Reorderer().reorder(list(map(str, range(2000))), now=0.0)


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=8, unique=True), max_size=12),
    st.lists(st.sampled_from(["", "a", "b"]), min_size=12, max_size=12),
)
def test_every_document_goes_out_once_and_in_full(contexts, names):
    r = Reorderer()
    held = {"a": set(), "b": set()}
    for now, (ids, name) in enumerate(zip(contexts, names, strict=False)):
        made = r.reorder(texts(ids), now=float(now), conversation=name)
        assert sorted(made.order) == list(range(len(ids)))
        for place, at in enumerate(made.order):
            if at in made.repeated:
                assert ids[at] in held[name]
            else:
                assert made.documents[place] == text(ids[at])
        if name:
            held[name].update(ids)


def test_a_document_shorter_than_its_note_comes_back_as_it_is():
    r = Reorderer()
    memories = ["User likes tea.", "User lives in Oslo.", text(1)]
    r.reorder(memories, now=0.0, conversation="c")
    again = r.reorder(memories, now=1.0, conversation="c")
    assert again.repeated == (2,)
    assert again.documents[:2] == tuple(memories[:2])


def test_text_with_half_a_character_is_ordered_as_well():
    made = Reorderer().reorder(["torn \ud800", text(1)], now=0.0, conversation="c")
    assert made.documents == ("torn \ud800", text(1))
