"""What callers get, for every pair of body modes that an Envoy can announce."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from test_stream_machine import BODY, HEADERS, Driver

from laar.fleet.membership import Way
from laar.protocol.agreed import LONGEST_HOLD
from laar.protocol.events import (
    SHAPES,
    BodyMode,
    Immediate,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Shape,
)
from laar.server.extproc.messages import ANSWERS, event_of
from laar.wire import ext_proc_pb2 as pb

SHOWN = [shape for shape in SHAPES.values() if shape.request is not BodyMode.NONE]
NAMES = [f"{shape.request.name}-{shape.answer.name}" for shape in SHOWN]
DESTINATION = "x-gateway-destination-endpoint"
ROUTED_BY = {"x-gateway-inference-objective": "batch", "x-laar-task": "t", "x-slo-ttft-ms": "9"}
CONTROLS = {"x-kv-transfer-host": "10.6.6.6", "x-vllm-priority": "1"}
ANSWER = b'{"id":"1","model":"m","choices":[{"message":{"content":"hello"}}]}'


class Caller:
    """An Envoy with these modes, which keeps to the rules of its modes.

    Args:
        driver: the picker's stream.
        shape: the body modes.
        attempts: its number of attempts, if it is laar's own.
        extra: headers of the request besides the usual.
    """

    def __init__(self, driver, shape, attempts=0, extra=()):
        self.driver, self.shape = driver, shape
        headers = {**HEADERS, **dict(extra)}
        self.request = RequestHeaders(
            headers, False, shape, count=len(headers), size_bytes=99, attempts=attempts
        )
        self.replies = []

    def feed(self, event):
        """Return the replies as Envoy receives them."""
        replies = [
            pb.ProcessingResponse.FromString(ANSWERS[type(action)](action))
            for action in self.driver.feed(event)
        ]
        self.replies += replies
        return replies

    def pass_body(self, mode, body, event, field):
        """Return the bytes that are passed on."""
        cuts = {BodyMode.NONE: [], BodyMode.BUFFERED: [body]}.get(mode, [body[:20], body[20:]])
        passed = b""
        for number, piece in enumerate(cuts, 1):
            for reply in self.feed(event(piece, number == len(cuts))):
                change = getattr(reply, field).response.body_mutation
                if mode is BodyMode.DUPLEX:
                    passed += change.streamed_response.body
                elif reply.WhichOneof("response") == field:
                    passed += change.body if change.WhichOneof("mutation") else piece
        return passed

    def ask(self):
        """Send the request; return what the endpoint gets, or None if laar answers it."""
        self.feed(self.request)
        passed = self.pass_body(self.shape.request, BODY, RequestBody, "request_body")
        return None if self.replies[-1].HasField("immediate_response") else passed

    def answered(self):
        """Send the answer; return what the client gets."""
        self.feed(ResponseHeaders(200, count=3, media_type="application/json"))
        return self.pass_body(self.shape.answer, ANSWER, ResponseBody, "response_body")

    def told(self):
        """Return the destinations by header and metadata, and the headers that are removed."""
        headers, metadata, removed = [], [], []
        for reply in self.replies:
            for part in (reply.request_headers, reply.request_body):
                change = part.response.header_mutation
                removed += change.remove_headers
                headers += [
                    h.header.raw_value.decode()
                    for h in change.set_headers
                    if h.header.key == DESTINATION
                ]
            if reply.HasField("dynamic_metadata"):
                known = reply.dynamic_metadata.fields["envoy.lb"].struct_value
                metadata.append(known.fields[DESTINATION].string_value.decode())
        return headers, metadata, removed


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("shape", SHOWN, ids=NAMES)
def test_another_gateway_gets_what_the_protocol_promises_and_nothing_more(shape, lists):
    driver = Driver(models=("m", "m", "m"), gateway_lists=lists)
    caller = Caller(driver, shape, extra={**ROUTED_BY, **CONTROLS})
    asked = caller.ask()
    headers, metadata, removed = caller.told()
    ranked = (driver.stream.decision.address, *driver.stream.decision.fallbacks)
    assert headers == metadata == [",".join(ranked)]
    assert len(ranked) == (3 if lists else 1)
    assert set(CONTROLS) <= set(removed) <= {*CONTROLS, "accept-encoding"}
    late = shape.request is BodyMode.STREAMED  # the headers have gone ahead
    assert asked == (BODY if late else BODY.replace(b'"auto"', b'"m"'))
    got = caller.answered()
    if shape.answer is not BodyMode.NONE:
        assert got == (ANSWER if late else ANSWER.replace(b'"m"', b'"auto"'))
        (end,) = driver.recorder.ends
        assert end.cause == "complete"
    for reply in caller.replies:
        assert not reply.HasField("mode_override")
        for part in (reply.request_headers, reply.request_body):
            assert not part.response.clear_route_cache


@pytest.mark.parametrize("shape", SHOWN, ids=NAMES)
def test_trailers_are_passed_on(shape):
    driver = Driver(models=("m",))
    caller = Caller(driver, shape)
    caller.feed(caller.request)
    caller.feed(RequestBody(BODY, False))
    assert caller.feed(RequestTrailers())[-1].HasField("request_trailers")
    caller.feed(ResponseHeaders(200, count=3, media_type="application/json"))
    if shape.answer is not BodyMode.NONE:
        caller.feed(ResponseBody(ANSWER, False))
    assert caller.feed(ResponseTrailers())[-1].HasField("response_trailers")
    assert {end.cause for end in driver.recorder.ends} == {"complete"}
    assert not driver.stream.ignored


@pytest.mark.parametrize("shape", SHOWN, ids=NAMES)
@pytest.mark.parametrize("asks", [2, 5])
def test_a_gateway_that_asks_again_gets_the_same_answer_and_is_counted_once(asks, shape):
    first, pending = Driver(models=("m", "m", "m")), []
    headers = {}
    for number in range(asks):
        driver = Driver(models=("m", "m", "m"))
        driver.stream.env = first.stream.env
        driver.director = first.director
        caller = Caller(first if not number else driver, shape, extra=headers)
        caller.ask()
        pending.append(caller)
        sets = [
            h.header
            for reply in caller.replies
            for part in (reply.request_headers, reply.request_body)
            for h in part.response.header_mutation.set_headers
        ]
        headers |= {h.key: h.raw_value.decode() for h in sets if h.key != "content-length"}
    decision = first.stream.decision
    assert all(caller.told()[:2] == ([decision.address],) * 2 for caller in pending)
    assert first.director.table.decisions == 1
    for caller in reversed(pending):  # the last filter sees the answer first
        caller.answered()
    assert not first.stream.env.tickets
    forged = Caller(Driver(models=("m",)), Shape.GATEWAY, extra=headers)
    forged.ask()
    assert forged.driver.stream.decision is not None, "a ticket is void once the answer has begun"


def test_a_gateway_that_shows_no_bodies_is_refused_unless_none_is_needed():
    shape = SHAPES[BodyMode.NONE, BodyMode.NONE]
    caller = Caller(Driver(), shape)
    assert caller.ask() is None
    (refusal,) = caller.driver.log
    assert orjson.loads(refusal.body)["error"]["code"] == "no-bodies"
    for upload in ({":path": "/v1/files"}, {"upgrade": "websocket", ":method": "GET"}):
        caller = Caller(Driver(), shape, extra=upload)
        assert caller.ask() is not None
        assert caller.told()[0] == ["10.0.0.1:80"]


@pytest.mark.parametrize("key", ["", "secret"])
@pytest.mark.parametrize("count", range(85, 101))
def test_no_request_gets_more_headers_than_a_gateway_allows(count, key):
    driver = Driver(models=("m",))
    (spec,) = driver.director.table.specs()
    driver.director.table.replace("t", [replace(spec, way=Way(key=key))])
    caller = Caller(driver, Shape.GATEWAY)
    caller.request.count = count
    caller.ask()
    sets = [
        header
        for reply in caller.replies
        for header in reply.request_headers.response.header_mutation.set_headers
    ]
    needed = 3 if key else 0  # which replace the client's, if it sent any
    assert count + len(sets) <= max(100, count + needed)
    assert caller.told()[1] == [spec.address]


def test_a_ticket_is_not_valid_for_another_pool():
    first = Driver(models=("m", "m"))
    Caller(first, Shape.GATEWAY).ask()
    ((ticket, _),) = first.stream.env.tickets.items()
    other = Driver(models=("m", "m"))
    other.stream.env = first.stream.env
    caller = Caller(other, Shape.GATEWAY, extra={"x-laar-ticket": ticket})
    caller.request.subset = frozenset({"10.0.0.9:80"})
    caller.ask()
    assert caller.replies[-1].HasField("immediate_response")


@pytest.mark.parametrize("status", [400, 403, 413, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("made_by", ["", "date", "server", "x-envoy-upstream-service-time"])
def test_an_error_with_no_servers_header_is_the_gateways_own(status, made_by):
    driver = Driver(models=("m", "m"))
    Caller(driver, Shape.GATEWAY).ask()
    message = pb.ProcessingRequest()
    made = {":status": str(status), "content-type": "text/plain", "x-added-by-a-route": "1"}
    for name, value in (made | ({made_by: "1"} if made_by else {})).items():
        message.response_headers.headers.headers.add(key=name, raw_value=value.encode())
    driver.feed(event_of(message))
    driver.feed(ResponseBody(b"no", True))
    (end,) = driver.recorder.ends
    assert bool(driver.recorder.replies) is bool(made_by)
    assert end.cause == ("complete" if made_by else "error")
    replaced = any(type(action) is Immediate for action in driver.log)
    assert replaced is (not made_by and status >= 500)


@pytest.mark.parametrize("said", ["300", "1e9", "nan", "inf", "60s", "-1", ""])
def test_a_route_may_say_anything_of_its_longest_hold(said):
    message = pb.ProcessingRequest()
    message.request_headers.headers.headers.add(key=":path", raw_value=b"/")
    message.attributes["envoy.filters.http.ext_proc"].fields[
        LONGEST_HOLD
    ].string_value = said.encode()
    known = {"300": 300.0, "1e9": 3600.0, "inf": 3600.0}
    assert event_of(message).longest_hold_s == known.get(said, 0.0)


@pytest.mark.parametrize("path", [HEADERS[":path"], None])
def test_no_mode_is_chosen_for_a_gateway_that_sends_its_own_body(path):
    driver = Driver()
    driver.stream.env = replace(driver.stream.env, kept_members=frozenset({"thinking"}))
    asked = []
    decide = driver.director.decide
    driver.director.decide = lambda request, now: asked.append(request) or decide(request, now)
    extra = {} if path else {":path": ""}
    driver.feed(RequestHeaders({**HEADERS, **extra}, False, Shape.GATEWAY, count=3, size_bytes=99))
    driver.feed(RequestBody(BODY, end=True))
    assert [request.any_mode for request in asked] == [bool(path)]
