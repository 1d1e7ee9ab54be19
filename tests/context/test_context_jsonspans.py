"""Strings can be spliced into JSON from any writer."""

from __future__ import annotations

import json
import random

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.context.blocks import SkippedText
from laar.context.formats.jsonspans import spans_of, splice
from laar.context.settings import Reason
from support.exploring import examples

json_st = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)


def written(value, rng):
    """Return JSON in any style, with any escapes, white space and exponents."""
    space = lambda: rng.choice(["", "", " ", "\n\t "])  # noqa: E731
    if isinstance(value, str):
        return '"' + "".join(escaped(sign, rng) for sign in value) + '"'
    if isinstance(value, list):
        return (
            f"[{space()}"
            + f"{space()},{space()}".join(written(v, rng) for v in value)
            + f"{space()}]"
        )
    if isinstance(value, dict):
        members = (
            f"{written(k, rng)}{space()}:{space()}{written(v, rng)}" for k, v in value.items()
        )
        return f"{{{space()}" + f"{space()},{space()}".join(members) + f"{space()}}}"
    return json.dumps(value)


def escaped(sign, rng):
    units = sign.encode("utf-16-be")
    long = "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))
    plain = json.dumps(sign, ensure_ascii=False)[1:-1]
    return rng.choice([long, plain, plain, "\\/" if sign == "/" else plain])


def strings(value, path=()):
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from strings(below, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@settings(max_examples=examples(80))
@given(st.dictionaries(st.text(max_size=3), json_st, min_size=1), st.integers(0, 999), st.data())
def test_a_splice_changes_only_the_given_strings(value, seed, data):
    text = written(value, random.Random(seed))
    places = list(strings(value))
    if not places:
        return
    chosen = data.draw(
        st.lists(st.sampled_from(places), min_size=1, max_size=3, unique_by=lambda p: p[0])
    )
    body = text.encode()
    edits = {path: f'new {i} é"\\\n' for i, (path, _) in enumerate(chosen)}
    out = splice(body, edits)
    expected = value
    for path, new in edits.items():
        expected = replaced(expected, path, new)
    assert orjson.loads(out) == expected
    # With the old literals put back, every byte must be the same.
    spans = spans_of(text, edits)
    rest = out.decode()
    for path, new in edits.items():
        start, end = spans[path]
        rest = rest.replace(orjson.dumps(new).decode(), text[start:end], 1)
    assert rest == text


def refusal(text, path):
    with pytest.raises(SkippedText) as info:
        spans_of(text, [path])
    return info.value.reason


def test_a_duplicate_key_is_refused_only_along_the_path():
    assert refusal('{"a": "x", "a": "y", "b": "z"}', ("b",)) is Reason.DUPLICATE_KEYS
    assert refusal('{"a": "x", "b": "z", "\\u0061": "y"}', ("b",)) is Reason.DUPLICATE_KEYS
    body = b'{"o": {"a": "x", "a": "y"}, "b": "z"}'
    assert splice(body, {("b",): "w"}) == body.replace(b'"z"', b'"w"')


@pytest.mark.parametrize(
    "text",
    [
        '{"x": [%s0], "y": 1}' % ("[]," * 60_000),
        '{"x": ' + "[" * 1_010 + "]" * 1_010 + ', "y": 1}',
        "{" + "".join(f'"a{i}": 1,' for i in range(70_000)) + '"y": 1}',
    ],
    ids=["brackets", "depth", "members"],
)
def test_a_body_with_too_many_values_is_refused(text):
    assert refusal(text, ("y",)) is Reason.TOO_COMPLEX
