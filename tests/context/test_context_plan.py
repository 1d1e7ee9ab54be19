"""Offline planning of whole batches."""

from __future__ import annotations

import json
import random

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings, Reason
from laar_lab.offline import plan, plan_lines
from support.exploring import examples


def text(ids, more=" and so on" * 20):
    return "".join(f"<doc id='d{i}'>document {i}{more}</doc>\n" for i in ids) + "Question?"


def chat(ids, **more):
    return json.dumps({"messages": [{"role": "user", "content": text(ids)}], **more}).encode()


def content(line):
    return orjson.loads(line)["messages"][0]["content"]


def topics(n, seed):
    rng = random.Random(seed)
    return [rng.sample(range(8 * (topic := rng.randrange(5)), 8 * topic + 8), 5) for _ in range(n)]


@settings(max_examples=examples(40))
@given(
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=5, unique=True), max_size=15),
    st.one_of(st.none(), st.integers(1, 30)),
)
def test_a_plan_sends_every_request_once_with_its_documents(contexts, capacity):
    planned = plan(contexts, capacity_docs=capacity)
    assert sorted(request.index for request in planned.requests) == list(range(len(contexts)))
    for request in planned.requests:
        assert sorted(request.docs) == sorted(contexts[request.index])
    assert 0.0 <= planned.hit_received <= 1.0
    assert 0.0 <= planned.hit_planned <= 1.0


def test_scheduling_and_ordering_increase_hits_in_a_small_cache():
    planned = plan(topics(300, 1), capacity_docs=20)
    assert planned.hit_planned > 3 * planned.hit_received
    assert planned.hit_planned > 0.5


def test_complete_lines_are_written_in_sending_order():
    lines = [chat(ids, n=i) for i, ids in enumerate(topics(60, 2))]
    others = [b"not json", b'{"messages": []}', b'{"a": 1}']
    out, report = plan_lines([*lines, b"", *others])
    assert (report.requests, report.planned, report.documents) == (63, 60, 300)
    assert report.left == {"invalid_json": 1, "no_documents": 1, "unsupported_api": 1}
    assert out[-3:] == others
    assert 0 < report.reordered < 60
    assert report.hit_planned > report.hit_received
    for line in out[:60]:
        n = orjson.loads(line)["n"]
        new, old = content(line), content(lines[n])
        assert line.endswith(f'"n": {n}}}'.encode())
        for part in old.split("\n")[:5]:
            assert new.count(part) == 1
        assert ("by relevance" in new) == (new != old) == (line != lines[n])


def test_batch_file_lines_keep_their_envelope():
    lines = [
        json.dumps({"custom_id": f"c{i}", "body": orjson.loads(chat(ids))}).encode()
        for i, ids in enumerate([[3, 1, 2], [2, 1, 3, 4]])
    ]
    out, report = plan_lines(lines)
    assert report.reordered == 1
    values = [orjson.loads(line) for line in out]
    assert sorted(value["custom_id"] for value in values) == ["c0", "c1"]
    heads = {value["body"]["messages"][0]["content"].split("\n")[0] for value in values}
    assert len(heads) == 1


@pytest.mark.parametrize("field", ["tools", "model"])
def test_a_line_nested_too_deeply_to_write_stays_and_others_are_planned(field):
    deep = chat([1, 2, 3])[:-1] + b', "%s": %s}' % (field.encode(), b"[" * 300 + b"]" * 300)
    out, report = plan_lines([deep, chat([1, 2, 3])])
    assert (out, report.left) == ([chat([1, 2, 3]), deep], {"too_complex": 1})
    if field != "model":  # the hook only compares models
        call = {"api": "chat", "tenant": "", "mode": "on"}
        assert ContextHook().apply(deep, now=0.0, **call).reason is Reason.TOO_COMPLEX


@pytest.mark.parametrize(("missing", "small"), [(0, False), (2, False), (3, True)])
def test_a_batch_plan_ignores_the_lists_that_the_hook_ignores_as_too_small(missing, small):
    """Five documents of 146 bytes have 2 bytes more than eight times the length of a note, 91."""
    message = text((3, 1, 2, 5, 4), "." * 117).replace(".", "", missing)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": message}]}).encode()
    call = {"api": "chat", "tenant": "", "mode": "on"}
    here = ContextHook(ContextSettings(holdout_share=0.0)).apply(body, now=0.0, **call)
    there = plan_lines([body])[1].left
    assert (here.reason is Reason.TOO_SMALL, "too_small" in there) == (small, small)
