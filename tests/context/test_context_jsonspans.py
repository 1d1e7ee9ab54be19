"""Splicing strings into JSON that anyone may have written."""

from __future__ import annotations

import json
import random
import time

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.context.formats.jsonspans import JsonSpans, TooComplexError, splice
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
    """JSON in some writer's style: any escapes, any white space, exponents."""
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
def test_a_splice_replaces_the_strings_and_no_other_byte(value, seed, data):
    text = written(value, random.Random(seed))
    places = list(strings(value))
    if not places:
        return
    chosen = data.draw(
        st.lists(st.sampled_from(places), min_size=1, max_size=3, unique_by=lambda p: p[0])
    )
    body = text.encode()
    edits = {path: f'new {i} é"\\\n' for i, (path, _) in enumerate(chosen)}
    out = splice(body, orjson.loads(body), edits)
    assert out is not None
    expected = value
    for path, new in edits.items():
        expected = replaced(expected, path, new)
    assert orjson.loads(out) == expected
    # Put the old literals back: then not a byte may differ.
    spans = JsonSpans(text).find(value, nested(set(edits)))
    assert spans is not None
    rest = out.decode()
    for path, new in edits.items():
        start, end = spans[path]
        rest = rest.replace(orjson.dumps(new).decode(), text[start:end], 1)
    assert rest == text


def nested(paths):
    want: dict = {}
    for path in paths:
        at = want
        for step in path[:-1]:
            at = at.setdefault(step, {})
        at[path[-1]] = None
    return want


def test_a_key_on_the_way_that_comes_twice_is_a_refusal_and_elsewhere_is_not():
    body = b'{"a": "x", "a": "y", "b": "z"}'
    assert splice(body, orjson.loads(body), {("b",): "w"}) is None
    body = b'{"o": {"a": "x", "a": "y"}, "b": "z"}'
    assert splice(body, orjson.loads(body), {("b",): "w"}) == body.replace(b'"z"', b'"w"')


@pytest.mark.parametrize(
    "text",
    [
        '{"x": "%s", "y": 1}' % ('\\"' * 60_000),
        '{"x": [%s0], "y": 1}' % ("[]," * 60_000),
        "{" + "".join(f'"a{i}": 1,' for i in range(60_000)) + '"y": 1}',
    ],
    ids=["quotes", "brackets", "members"],
)
def test_a_body_of_too_many_steps_is_given_up(text):
    # A guess that does not fit, so that the text itself has to be walked.
    with pytest.raises(TooComplexError):
        JsonSpans(text).find({"x": None, "y": 1, "a": 1}, {"y": None})


def test_a_value_that_belongs_to_a_later_key_of_the_same_name_is_not_taken_for_this_one():
    """A long value would have its first literal end in the middle of the bytes that follow."""
    body = b'{"a": "x", "b": "z", "a": "%s"}' % (b"y" * 9)
    assert splice(body, orjson.loads(body), {("b",): "w"}) is None
    inner = b'{"o": %s, "b": "z"}' % body
    assert splice(inner, orjson.loads(inner), {("b",): "w"}) == inner[:-4] + b'"w"}'


def test_many_keys_of_one_name_are_refused_without_comparing_each():
    def seconds(times):
        body = b'{"m": [{%s"k": "%s", "t": "v"}]}' % (b'"k": "",' * times, b"y" * 1_000_000)
        value = orjson.loads(body)
        began = time.thread_time()
        assert splice(body, value, {("m", 0, "t"): "w"}) is None
        return time.thread_time() - began

    # Compared each time, a thousand times the keys take a thousand times as long.
    assert seconds(10_000) < 50 * max(seconds(10), 2e-4)


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(1, 500), st.booleans())
def test_texts_full_of_quotes_are_walked_too(seed, quotes, plain):
    rng = random.Random(seed)
    value = {"a": ['"x\\' * quotes, '"' * quotes], "b": "old"}
    text = json.dumps(value) if plain else written(value, rng)
    spans = JsonSpans(text).find(value, {"b": None})
    assert spans is not None
    assert orjson.loads(text[slice(*spans["b",])]) == "old"


def test_backslashes_before_the_closing_quote_are_counted():
    text = '{"a": "x\\\\", "b": "\\\\\\"", "c": "z"}'
    spans = JsonSpans(text).find({"a": 0, "b": 0, "c": 0}, {"a": None, "b": None, "c": None})
    assert spans is not None
    assert [text[slice(*spans[(key,)])] for key in "abc"] == ['"x\\\\"', '"\\\\\\""', '"z"']
