"""In shadow mode laar decides and records, but changes no byte and no header."""

import random
from itertools import pairwise

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.core.decision import Enforcement
from laar.errors import RequestError
from laar.fleet.membership import EndpointSpec
from laar.protocol import events as ev
from laar.protocol.stream import Environment, Stream, StreamSettings
from support.directors import director_of
from support.exploring import examples
from support.recorders import Recording, decided

CHAT = {":path": "/v1/chat/completions", ":method": "POST", "x-request-id": "r1"}
BODY = orjson.dumps({"model": "auto", "messages": [{"role": "user", "content": "hello"}]})
BAD = (b"{", b'{"model":"nobody","messages":[]}', b"x" * 200)


def a_director():
    return director_of(*(EndpointSpec(address=f"10.0.0.{i}:80", models=(f"m{i}",)) for i in (1, 2)))


class Driven:
    """A stream in shadow mode with a director."""

    def __init__(self, *, enforce_share=0.0, max_body_bytes=1 << 20, director=None):
        self.director = director or a_director()
        limits = StreamSettings(max_body_bytes=max_body_bytes)
        self.stream = Stream(
            Environment(
                settings=limits,
                new_id=lambda: "made",
                enforced=Enforcement(enforce_share=enforce_share).enforces,
                recorder=Recording(self.director),
            )
        )
        self.decision = None

    def feed(self, event):
        done, pending = [], event
        while pending is not None:
            actions, pending = self.stream.receive(pending, 1.0), None
            for action in actions:
                match action:
                    case ev.Ask(request):
                        try:
                            self.decision = self.director.decide(request, 1.0)
                            pending = ev.Decided(self.decision, 1)
                        except RequestError as error:
                            pending = ev.Refused(error)
                    case _:
                        done.append(action)
        return done


def untouched(actions):
    """Return whether laar set, removed, redirected and answered nothing."""
    for action in actions:
        assert not isinstance(action, ev.Immediate)
        if (of := decided(action)) is not None:
            assert not of.set_headers
            assert not of.remove_headers
            assert not of.destination
    return actions


HEADERS = {
    **CHAT,
    "x-laar-task": "code",
    "x-gateway-destination-endpoint": "10.9.9.9:80",
    "x-gateway-destination-endpoint-subset": "10.9.9.9",
}


@settings(max_examples=examples(60))
@given(
    body=st.one_of(st.sampled_from((BODY, *BAD)), st.binary(max_size=300)),
    cuts=st.lists(st.integers(0, 300), max_size=4),
    trailers=st.booleans(),
    limit=st.sampled_from((1, 50, 1 << 20)),
)
def test_in_full_duplex_shadow_mode_returns_every_byte_once_and_in_order(
    body, cuts, trailers, limit
):
    driven = Driven(max_body_bytes=limit)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[a:b] for a, b in pairwise(edges)]
    actions = driven.feed(ev.RequestHeaders(HEADERS, end=False, shape=ev.Shape.GATEWAY))
    for i, piece in enumerate(pieces):
        last = i == len(pieces) - 1 and not trailers
        actions += driven.feed(ev.RequestBody(piece, end=last))
    if trailers:
        actions += driven.feed(ev.RequestTrailers())
    untouched(actions)
    assert isinstance(actions[0], ev.AnswerHeaders)
    sent = [a for a in actions if isinstance(a, ev.AnswerBody)]
    assert b"".join(a.data for a in sent) == body
    assert [a.end for a in sent] == [False] * (len(sent) - 1) + [not trailers]
    assert sum(isinstance(a, ev.AnswerTrailers) for a in actions) == trailers
    driven.feed(ev.Closed())
    assert not driven.director.table.in_flight.any()


@pytest.mark.parametrize("shape", [ev.Shape.NATIVE, ev.Shape.STREAMED, ev.Shape.GATEWAY])
def test_a_request_without_a_body_in_shadow_mode_is_forwarded(shape):
    driven = Driven()
    headers = {":path": "/v1/models", ":method": "GET"}
    (answer,) = untouched(driven.feed(ev.RequestHeaders(headers, end=True, shape=shape)))
    assert isinstance(answer, ev.AnswerHeaders)
    assert driven.decision is not None


def response(served=""):
    return ev.ResponseHeaders(status=200, streamed=False, count=3, end=True, served=served)


def test_the_reservation_follows_the_endpoint_that_served():
    driven = Driven()
    driven.feed(ev.RequestHeaders(CHAT, end=False, shape=ev.Shape.NATIVE))
    driven.feed(ev.RequestBody(BODY, end=True))
    decision, table = driven.decision, driven.director.table
    other = "10.0.0.2:80" if decision.address == "10.0.0.1:80" else "10.0.0.1:80"
    (told,) = driven.feed(response(other))
    assert dict(told.set_headers) == {"x-laar-decision-id": decision.id, "x-laar-mode": "shadow"}
    assert (decision.flight.address, decision.flight.served) == (other, True)
    assert decision.flight.model == table.spec(table.slot(other)).models[0]
    assert not table.in_flight.any()


@pytest.mark.parametrize("served", ["", "10.0.0.2:80"])
def test_nothing_is_learned_without_a_known_endpoint(served):
    driven, learned = Driven(), []
    driven.director.engines.ended = lambda began, _now, **_how: learned.append(began.slot)
    driven.feed(ev.RequestHeaders(CHAT, end=False, shape=ev.Shape.GATEWAY))
    driven.feed(ev.RequestBody(BODY, end=True))
    headers = response(served)
    headers.end = False
    driven.feed(headers)
    usage = b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}'
    driven.feed(ev.ResponseBody(usage, end=True))
    assert learned == ([1] if served else [])


@pytest.mark.long
def test_a_share_is_enforced_for_complete_sessions():
    director = a_director()

    def enforced(session, share):
        driven = Driven(enforce_share=share, director=director)
        headers = {**CHAT, "x-request-id": str(random.random()), "x-laar-session": session}
        driven.feed(ev.RequestHeaders(headers, end=False, shape=ev.Shape.NATIVE))
        (answer,) = driven.feed(ev.RequestBody(BODY, end=True))
        assert driven.decision.request.shadow is not bool(answer.decided.destination)
        return bool(answer.decided.destination)

    sessions = [f"s{i}" for i in range(300)]
    quarter = {s for s in sessions if enforced(s, 0.25)}
    half = {s for s in sessions if enforced(s, 0.5)}
    assert quarter == {s for s in sessions if enforced(s, 0.25)}
    assert quarter < half
    assert 50 < len(quarter) < 100
    assert 120 < len(half) < 180
    assert all(enforced(s, 1.0) for s in sessions[:20])
