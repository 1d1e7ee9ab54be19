"""Failed attempts: the named endpoints, the reports to the picker, and silent endpoints."""

from dataclasses import replace

import orjson
import pytest

from laar.protocol.events import (
    Ask,
    Closed,
    Decided,
    Direction,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    Shape,
)
from laar.protocol.stream import Environment, Stream, StreamSettings
from support.directors import director_of
from support.recorders import Recording

HEADERS = {":path": "/v1/chat/completions", ":method": "POST"}


def body(**fields):
    return orjson.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}
    )


class Driven:
    """A decided stream; `endpoints` serve its model."""

    def __init__(self, endpoints, attempts, sent=None, latency_s=None):
        self.director = director_of(*(f"10.0.0.{i}:80" for i in range(1, endpoints + 1)))
        self.recorder = Recording(self.director)
        self.stream = Stream(
            Environment(settings=StreamSettings(), new_id=lambda: "id", recorder=self.recorder)
        )
        event = RequestHeaders(HEADERS, False, Shape.NATIVE, attempts=attempts, body=sent or body())
        (ask,) = self.stream.receive(event, 1.0)
        assert type(ask) is Ask
        self.decision = self.director.decide(ask.request, 1.0)
        if latency_s is not None:
            terms = self.decision.view.terms
            self.decision.view.terms = replace(terms, latency_s=terms.latency_s * 0 + latency_s)
        (answer,) = self.stream.receive(Decided(self.decision, 1), 1.0)
        self.sent = answer.decided

    def answered(self, status, details, attempts):
        event = ResponseHeaders(status, attempts=attempts, details=details)
        return self.stream.receive(event, 2.0)


@pytest.mark.parametrize(
    ("endpoints", "attempts", "named"),
    [(1, 0, 1), (1, 3, 3), (2, 3, 3), (3, 3, 3), (5, 3, 3), (1, 11, 11), (3, 1, 3)],
)
def test_the_list_covers_all_attempts_and_repeats_only_if_necessary(endpoints, attempts, named):
    driven = Driven(endpoints, attempts)
    listed = driven.sent.destination.split(",")
    ranked = [driven.decision.address, *driven.decision.fallbacks]
    assert len(listed) == named
    assert listed == [ranked[i % len(ranked)] for i in range(named)]


def test_a_gateway_that_gives_no_number_of_attempts_gets_one_endpoint():
    """It chooses the endpoints of its retries itself, so these reveal nothing about others."""
    driven = Driven(3, 0)
    recorder = Recording(driven.director)
    stream = Stream(Environment(settings=StreamSettings(), new_id=lambda: "id", recorder=recorder))
    stream.receive(RequestHeaders(HEADERS, False, Shape.GATEWAY), 1.0)
    stream.receive(RequestBody(body(), True), 1.0)
    sent, *_ = stream.receive(Decided(driven.decision, 1), 1.0)
    assert sent.destination == driven.decision.address
    assert sent.patience_s is None
    _, last = driven.decision.fallbacks
    stream.receive(ResponseHeaders(200, served=last), 2.0)
    assert recorder.moved == [last]


def test_endpoints_that_failed_before_an_answer_are_reported_in_order():
    driven = Driven(3, 3)
    ranked = (driven.decision.address, *driven.decision.fallbacks)
    driven.answered(200, "via_upstream", 3)
    assert driven.recorder.failed == [ranked[:2]]


@pytest.mark.parametrize(("served", "attempts", "failed"), [(0, 3, 0), (1, 3, 1), (1, 2, 1)])
def test_an_earlier_endpoint_that_answers_a_hedged_request_did_not_fail(served, attempts, failed):
    """Later endpoints were tried while the earlier one was still working."""
    driven = Driven(3, 3, body(stream=True), latency_s=0.1)
    assert driven.sent.patience_s == 5
    ranked = (driven.decision.address, *driven.decision.fallbacks)
    event = ResponseHeaders(200, served=ranked[served], attempts=attempts, details="via_upstream")
    driven.stream.receive(event, 7.0)
    assert driven.recorder.failed == ([ranked[:failed]] if failed else [])


def statuses(*without):
    """Return the statuses of failures as Envoy reads them, but what the request causes."""
    found = {408, 429, *range(500, 600)} - {501, 505, *without}
    return {"x-envoy-retriable-status-codes": ",".join(map(str, sorted(found)))}


REPEATS = {"x-envoy-retry-on": "reset,retriable-headers", "x-envoy-max-retries": "1", **statuses()}
ONLY_BUSY = {"x-envoy-retriable-status-codes": "429,529"}
BUSY_ENDS = statuses(429, 503, 529)
"""The only endpoint's `retry-after` is for the client."""


@pytest.mark.parametrize(
    ("endpoints", "sent", "retries"),
    [
        (1, body(), {**REPEATS, **BUSY_ENDS}),
        (3, body(), REPEATS),
        (3, body(store=False, background=None), REPEATS),
        (3, body(store=True), ONLY_BUSY),
        (1, body(store=True), {}),
        (3, body(background=True), ONLY_BUSY),
        # Hedged: never to an endpoint where an attempt may be open.
        (2, body(stream=True), REPEATS),
        (3, body(stream=True), REPEATS),
    ],
)
def test_a_request_is_repeated_as_far_as_that_does_no_harm(endpoints, sent, retries):
    driven = Driven(endpoints, 3, sent, latency_s=0.1)
    assert dict(driven.sent.retries) == retries


def test_no_client_is_told_to_repeat_what_may_have_been_done():
    driven = Driven(2, 3, body(store=True))
    (answer,) = driven.answered(503, "upstream_reset_before_response_started{reset}", 1)
    assert "retry-after" not in dict(answer.headers)
    driven = Driven(2, 3, body(store=True))
    (answer,) = driven.answered(503, "upstream_reset{remote_connection_failure}", 3)
    assert dict(answer.headers)["retry-after"] == "1"


@pytest.mark.parametrize(
    ("status", "details", "shown", "reason"),
    [
        (503, "upstream_reset_before_response_started{connection_failure}", 503, "no-answer"),
        (503, "no_healthy_upstream", 503, "no-answer"),
        (502, "upstream_reset_before_response_started{protocol_error}", 502, "bad-answer"),
        (504, "upstream_per_try_idle_timeout", 504, "timed-out"),
    ],
)
def test_an_error_from_envoy_is_replaced_by_one_that_names_the_model(
    status, details, shown, reason
):
    driven = Driven(2, 3)
    (answer,) = driven.answered(status, details, 3)
    (failed,) = driven.recorder.failed
    assert len(failed) == 3
    (end,) = driven.recorder.ends
    assert (end.status, end.cause) == (None, "error")
    assert answer.status == shown
    assert dict(answer.headers)["x-laar-reason"] == reason
    assert dict(answer.headers).get("retry-after") == (None if reason == "bad-answer" else "1")
    assert "`m`" in orjson.loads(answer.body)["error"]["message"]
    assert not driven.director.table.in_flight.any()
    assert not driven.stream.receive(Closed(), 3.0)
    assert not driven.director.table.in_flight.any()


@pytest.mark.parametrize(
    ("latency_s", "fields", "silence_s"),
    [
        (0.1, {"stream": True}, 600),
        (50.0, {"stream": True}, 600),
        (100.0, {"stream": True}, None),
        (0.1, {"max_tokens": 1000}, 600),
        (0.1, {"max_tokens": 4000}, None),
        (0.1, {}, None),
        (0.1, {"stream": True, "max_tokens": 100_000}, 600),
    ],
)
def test_the_allowed_silence_depends_on_the_expected_latency(latency_s, fields, silence_s):
    assert Driven(1, 3, body(**fields), latency_s).sent.patience_s == silence_s


@pytest.mark.parametrize(
    ("latency_s", "fields", "patience_s"),
    [
        (0.1, {"stream": True}, 5),
        (1.0, {"stream": True}, 10),
        (5.0, {"stream": True}, 30),
        (20.0, {"stream": True}, 600),
        (0.1, {"max_tokens": 20}, 10),
        (0.1, {"max_tokens": 1000}, 600),
        (0.1, {}, None),
    ],
)
def test_response_headers_are_expected_sooner_if_other_endpoints_can_answer(
    latency_s, fields, patience_s
):
    assert Driven(2, 3, body(**fields), latency_s).sent.patience_s == patience_s


def test_an_answer_of_an_earlier_filter_determines_the_shape():
    stream = Stream(Environment(settings=StreamSettings(), new_id=lambda: "id"))
    stream.receive(ResponseHeaders(401, shape=Shape.GATEWAY), 1.0)
    (echoed,) = stream.receive(ResponseBody(b"no", True), 2.0)
    assert (echoed.data, echoed.end, echoed.direction) == (b"no", True, Direction.RESPONSE)


def test_a_gateway_that_does_not_report_its_attempts_gets_each_endpoint_once():
    stream = Stream(Environment(settings=StreamSettings(), new_id=lambda: "id"))
    stream.receive(RequestHeaders(HEADERS, False, Shape.GATEWAY), 1.0)
    (ask,) = stream.receive(RequestBody(body(), True), 1.0)
    driven = Driven(1, 0)
    decision = driven.director.decide(ask.request, 1.0)
    headers, *_ = stream.receive(Decided(decision, 1), 1.0)
    assert headers.destination == decision.address
