"""The list of tried models as an untrusted header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.accuracy.retry import MAX_TRIED, parse_tried, with_model

KNOWN = {"a", "b", "meta/llama-3.1:8b"}


@pytest.mark.parametrize(
    ("header", "models", "ignored"),
    [
        (None, (), 0),
        ("", (), 0),
        ("a", ("a",), 0),
        (" a , b,a", ("a", "b", "a"), 0),
        ("a,nobody,b", ("a", "b"), 1),
        ("meta/llama-3.1:8b", ("meta/llama-3.1:8b",), 0),
        (",,", (), 3),
        ("\x00\xff\ufffd,a", ("a",), 1),
    ],
)
def test_lists_are_parsed_and_bad_entries_counted(
    header: str | None, models: tuple[str, ...], ignored: int
) -> None:
    assert parse_tried(header, KNOWN) == (models, ignored)


@given(st.text(alphabet=st.sampled_from("ab, \x00é,,"), max_size=300))
def test_any_header_yields_known_models_only(header: str) -> None:
    models, _ = parse_tried(header, KNOWN)
    assert set(models) <= KNOWN
    assert len(models) <= MAX_TRIED


@given(st.lists(st.sampled_from(sorted(KNOWN)), max_size=100), st.sampled_from(sorted(KNOWN)))
def test_a_written_header_of_tried_models_is_parsed_back(tried: list[str], model: str) -> None:
    back = parse_tried(",".join(with_model(tried, model)), KNOWN)
    assert back == ((*tried[-(MAX_TRIED - 1) :], model), 0)
