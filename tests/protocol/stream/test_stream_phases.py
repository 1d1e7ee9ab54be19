"""The table of phases is complete, and all of its entries are used."""

import random

import orjson
import pytest

from laar.core.decision import Enforcement
from laar.errors import RequestError
from laar.protocol import events as ev
from laar.protocol.openai import try_read
from laar.protocol.stream import Environment, Stream, StreamSettings, request_half
from laar.protocol.stream.phases import TRANSITIONS, RequestPhase, ResponsePhase
from support.directors import director_of
from support.recorders import Recording

SHORT = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
LONG = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hello" * 50}]})
UNKNOWN = SHORT.replace(b'"m"', b'"nobody"')
BODIES = (SHORT, LONG, UNKNOWN, b"{", b"{" * 300, b"x" * 2000)
PATHS = ("/v1/chat/completions", "/v1/files", "/sleep")
MAX_STREAMS = 20_000


@pytest.fixture
def director(monkeypatch):
    monkeypatch.setattr(request_half, "ASIDE_BYTES", 200)
    monkeypatch.setattr(request_half, "SHORT_BYTES", 200)
    return director_of("10.0.0.1:80", "10.0.0.2:80")


def event(rng):
    """Return any event from Envoy, an internal error, or the end of the stream."""
    headers = {":path": rng.choice(PATHS), ":method": "POST"}
    if rng.random() < 0.1:
        headers["upgrade"] = "websocket"
    body, end = rng.choice(BODIES), rng.random() < 0.5
    pool = rng.choice(("", "", "p"))
    return rng.choice(
        (
            ev.RequestHeaders(
                headers, rng.random() < 0.1, rng.choice(list(ev.SHAPES.values())), None, pool
            ),
            ev.RequestHeaders(headers, False, ev.Shape.NATIVE, None, pool, body=body),
            ev.RequestBody(body, end),
            ev.RequestTrailers(),
            ev.ResponseHeaders(200, end=end, served=rng.choice(("", "10.0.0.2:80"))),
            ev.ResponseHeaders(503, details="no_healthy_upstream"),
            ev.ResponseBody(b"x", end),
            ev.ResponseTrailers(),
            ev.Failed(),
            ev.Closed(),
        )
    )


class Faulty:
    """A cluster's rules and the enforced share, which fail occasionally."""

    def __init__(self, rng):
        self.rng = rng
        self.share = Enforcement(enforce_share=rng.choice((0.0, 1.0))).enforces

    def __call__(self, key):
        if self.rng.random() < 0.1:
            raise OSError
        return self.share(key)

    def priority(self, objective, pool):
        return 0

    by_source = ("",)

    def rewrite(self, model, pool):
        if self.rng.random() < 0.1:
            raise OSError


def phases_of(stream):
    return stream.request_phase, stream.answer_phase


def walk(director, rng):
    """Drive a stream as the server does; yield each transition of each half."""
    faulty = Faulty(rng)
    stream = Stream(
        Environment(
            settings=StreamSettings(max_body_bytes=1500),
            new_id=lambda: "id",
            enforced=faulty,
            rules=faulty,
            recorder=Recording(director),
        )
    )
    pending = [event(rng) for _ in range(8)]
    while pending:
        now = pending.pop(0)
        before, ignored = phases_of(stream), stream.ignored
        try:
            actions = stream.receive(now, 1.0)
        except OSError:
            assert phases_of(stream) == before, "a fault changes no phase"
            pending.insert(0, ev.Failed())
            continue
        if stream.ignored > ignored:
            assert not actions
            assert phases_of(stream) == before
            continue
        kind = type(now)
        half = 1 if kind in TRANSITIONS[before[1]] else 0
        yield before[half], kind, phases_of(stream)[half]
        if phases_of(stream)[0] is RequestPhase.OVER:
            assert phases_of(stream)[1] is ResponsePhase.OVER
        for action in actions:
            answer = answered(director, action, rng)
            if answer is not None:
                assert action is actions[-1], "an `Ask` is the last action"
                pending.insert(0, answer)


def answered(director, action, rng):
    match action:
        case ev.Read(api, body):
            return rng.choice((ev.Failed(), ev.Closed(), *2 * [ev.HasRead(try_read(api, body))]))
        case ev.Ask(request):
            refused = ev.Refused(RequestError(503, "no-endpoints", "none"))
            if rng.random() < 0.5:
                return rng.choice((ev.Failed(), ev.Closed(), refused))
            try:
                return ev.Decided(director.decide(request, 1.0), 1)
            except RequestError as error:
                return ev.Refused(error)
    return None


@pytest.mark.long
def test_exactly_the_transitions_in_the_table_occur(director):
    table = {
        (phase, kind, after)
        for phase, row in TRANSITIONS.items()
        for kind, nexts in row.items()
        for after in nexts
    }
    seen = set()
    rng = random.Random(1)
    for _ in range(MAX_STREAMS):
        seen.update(walk(director, rng))
        if seen == table:
            break
    assert seen - table == set()
    assert table - seen == set()


def test_each_event_belongs_to_one_half():
    halves = [
        {kind for phase, row in TRANSITIONS.items() if isinstance(phase, half) for kind in row}
        for half in (RequestPhase, ResponsePhase)
    ]
    assert not halves[0] & halves[1]
    assert halves[0] | halves[1] == {
        getattr(ev, kind.__name__) for kind in ev.Event.__subclasses__()
    }
