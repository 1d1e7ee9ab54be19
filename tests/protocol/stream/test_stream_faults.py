"""The stream machine after an internal error, or with too many headers."""

import tracemalloc
from unittest.mock import Mock

import orjson
import pytest

from laar.accuracy.features import language_of
from laar.errors import RequestError
from laar.fleet.membership import EndpointSpec
from laar.protocol.events import (
    AnswerHeaders,
    Ask,
    Closed,
    Decided,
    Direction,
    Failed,
    RequestBody,
    RequestHeaders,
    Shape,
)
from laar.protocol.stream import CHUNK_BYTES, Environment, Stream, StreamSettings
from support.directors import director_of
from support.features import features_of
from support.recorders import decided

HEADERS = {":path": "/v1/chat/completions", ":method": "POST", "x-request-id": "r1"}
NAMED = [Shape.NATIVE, Shape.STREAMED, Shape.GATEWAY]
BODY = orjson.dumps(
    {"model": "auto", "messages": [{"role": "user", "content": "x" * (2 * CHUNK_BYTES)}]}
)


def stream():
    return Stream(Environment(settings=StreamSettings(), new_id=lambda: "made"))


def feed(machine, event):
    return machine.receive(event, 0.0)


def in_full_duplex():
    """Return a stream that has received the first chunk of a body."""
    machine = stream()
    feed(machine, RequestHeaders(HEADERS, False, Shape.GATEWAY))
    feed(machine, RequestBody(BODY[:1000], False))
    return machine


def test_in_full_duplex_a_complete_body_is_forwarded_unchanged_after_an_error():
    machine = in_full_duplex()
    (ask,) = feed(machine, RequestBody(BODY[1000:], True))
    assert type(ask) is Ask
    first, *pieces = feed(machine, Failed())
    assert first == AnswerHeaders(Direction.REQUEST, [], model="auto")
    assert b"".join(p.data for p in pieces) == BODY
    assert [p.end for p in pieces] == [False] * (len(pieces) - 1) + [True]
    assert feed(machine, Failed()) == []
    assert feed(machine, Closed()) == []


def test_in_the_native_shape_the_body_is_unchanged_after_an_error():
    machine = stream()
    feed(machine, RequestHeaders(HEADERS, False, Shape.NATIVE))
    feed(machine, RequestBody(BODY, True))
    (answer,) = feed(machine, Failed())
    assert (answer.data, answer.decided.model) == (None, "auto")


@pytest.mark.parametrize("shape", NAMED)
@pytest.mark.parametrize(("count", "size_bytes"), [(91, 1000), (5, 59 << 10)])
def test_with_too_many_headers_only_a_forged_destination_is_overwritten(shape, count, size_bytes):
    director = director_of(EndpointSpec(address="10.0.0.1:80", models=("m",)))
    body = BODY.replace(b'"auto"', b'"m"')
    for forged in ({}, {"x-gateway-destination-endpoint": "10.6.6.6:80"}):
        machine = stream()
        head = {":path": HEADERS[":path"], ":method": "POST", **forged}
        event = RequestHeaders(head, False, shape, count=count, size_bytes=size_bytes, attempts=1)
        feed(machine, event)
        (ask,) = feed(machine, RequestBody(body, True))
        first, *_ = feed(machine, Decided(director.decide(ask.request, 0.0), 1))
        assert decided(first).destination == "10.0.0.1:80"
        overwritten = {"x-gateway-destination-endpoint": "10.0.0.1:80"} if forged else {}
        assert dict(decided(first).set_headers) == overwritten


def test_after_the_decision_only_parts_of_the_prompt_are_kept():
    director = director_of(EndpointSpec(address="10.0.0.1:80", models=("auto",)))
    machine = stream()
    prompt = "head " * 100 + "\u4e2d" * 50_000 + "tail?" * 100
    body = orjson.dumps({"model": "auto", "messages": [{"role": "user", "content": prompt}]})
    feed(machine, RequestHeaders(HEADERS, False, Shape.NATIVE))
    (ask,) = feed(machine, RequestBody(body, True))
    features = features_of(ask.request.question, 1000)
    decision = director.decide(ask.request, 0.0)
    feed(machine, Decided(decision, 1))
    kept = decision.request
    assert len(kept.question) + sum(map(len, kept.spans)) <= 1000
    assert features_of(kept.question, 1000) == features
    assert language_of(kept.question) == language_of(prompt)


@pytest.mark.parametrize("shape", NAMED)
@pytest.mark.parametrize("limits", [{"pool": "a"}, {"subset": frozenset({"10.0.0.1:80"})}])
def test_after_an_error_a_request_for_a_pool_is_refused(shape, limits):
    """Without a decision, Envoy would choose an endpoint of any pool."""
    machine = stream()
    feed(machine, RequestHeaders(HEADERS, False, shape, **limits))
    feed(machine, RequestBody(BODY, True))
    (refused,) = feed(machine, Failed())
    assert (refused.status, dict(refused.headers)["x-laar-reason"]) == (503, "picker-fault")


@pytest.mark.parametrize("shape", NAMED)
def test_a_body_that_cannot_be_changed_keeps_its_destination(shape, monkeypatch):
    director = director_of(EndpointSpec(address="10.0.0.1:80", models=("m",)))
    machine = stream()
    feed(machine, RequestHeaders(HEADERS, False, shape))
    (ask,) = feed(machine, RequestBody(BODY, True))
    broken = Mock(side_effect=RequestError(400, "bad-request", "unlike the body that was read"))
    monkeypatch.setattr("laar.protocol.stream.request_half.splice_model", broken)
    first, *rest = feed(machine, Decided(director.decide(ask.request, 0.0), 1))
    assert decided(first).destination == "10.0.0.1:80"
    sent = b"".join(action.data for action in [first, *rest] if getattr(action, "data", None))
    assert sent == (BODY if shape is Shape.GATEWAY else b"")
    assert machine.unspliced == 1


@pytest.mark.long
def test_a_body_of_single_bytes_takes_the_memory_of_its_length():
    machine = stream()
    feed(machine, RequestHeaders(HEADERS, False, Shape.GATEWAY))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for at in range(50_000):
            feed(machine, RequestBody(BODY[at : at + 1], False))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < 4 * 50_000
    (ask,) = feed(machine, RequestBody(BODY[50_000:], True))
    assert ask.request.body_bytes == len(BODY)


@pytest.mark.parametrize("shape", NAMED)
def test_an_error_while_sending_the_decision_loses_no_byte(shape, monkeypatch):
    director = director_of(EndpointSpec(address="10.0.0.1:80", models=("m",)))
    machine = stream()
    feed(machine, RequestHeaders(HEADERS, False, shape))
    (ask,) = feed(machine, RequestBody(BODY, True))
    broken = Mock(side_effect=RuntimeError)
    monkeypatch.setattr("laar.protocol.stream.request_half.splice_model", broken)
    with pytest.raises(RuntimeError):
        feed(machine, Decided(director.decide(ask.request, 0.0), 1))
    actions = feed(machine, Failed())
    assert not any(of.destination for action in actions if (of := decided(action)))
    sent = b"".join(action.data for action in actions if getattr(action, "data", None))
    assert sent == (BODY if shape is Shape.GATEWAY else b"")
