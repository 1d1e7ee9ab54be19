"""The priority that goes into a body: the last word, and every other byte as it was."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.protocol.openai import set_priority

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


@settings(max_examples=100)
@given(
    st.dictionaries(st.text(max_size=8) | st.just("priority"), VALUES, min_size=1),
    st.integers(-(2**50), 2**50),
    st.booleans(),
    st.sampled_from(["", " ", "\n\t"]),
)
def test_it_is_the_only_change_that_a_parser_sees(document, priority, escape, tail):
    body = (json.dumps(document, ensure_ascii=escape) + tail).encode("utf-8", "surrogatepass")
    changed = set_priority(body, priority)
    assert json.loads(changed) == {**json.loads(body), "priority": priority}


@pytest.mark.parametrize("own", [b'"priority":-9', b'"prior\\u0069ty":-9', b'"a":{"priority":1}'])
def test_a_clients_own_counts_no_more(own):
    body = b'{"model":"m",%b}\n' % own
    changed = set_priority(body, 7)
    assert orjson.loads(changed)["priority"] == 7
    assert changed == body[:-2] + b',"priority":7}\n'
