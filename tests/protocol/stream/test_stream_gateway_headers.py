"""Headers from gateways and from their conformance tests."""

import orjson
import pytest
from test_stream_machine import BODY, Driver

from laar.protocol.events import Ask, RequestBody, RequestHeaders, ResponseHeaders, Shape
from laar.protocol.stream import Environment, Stream, StreamSettings
from laar.request import Api

REWRITTEN = {":path": "/team/blue", ":method": "POST"}


def asked(headers, body=BODY, **settings):
    """Return the request for which a stream with these settings asks for a decision."""
    stream = Stream(Environment(settings=StreamSettings(**settings), new_id=lambda: "made"))
    list(stream.receive(RequestHeaders(headers, False, Shape.GATEWAY), 0.0))
    (ask,) = stream.receive(RequestBody(body, True), 0.0)
    assert isinstance(ask, Ask)
    return ask.request


@pytest.mark.parametrize("name", ["x-original-path", "x-forwarded-path"])
def test_the_original_path_of_a_rewritten_request_is_used(name):
    assert asked(REWRITTEN).api is Api.OPAQUE
    request = asked({**REWRITTEN, name: "/v1/chat/completions"})
    assert (request.api, request.model) == (Api.CHAT, "auto")
    plain = {":path": "/v1/completions", ":method": "POST", name: "/v1/embeddings"}
    assert asked(plain, orjson.dumps({"prompt": "x"})).api is Api.COMPLETIONS


def test_a_denied_path_stays_denied_despite_other_path_headers():
    driver = Driver()
    forged = {":path": "/pause", ":method": "POST", "x-original-path": "/v1/completions"}
    (refusal,) = driver.feed(RequestHeaders(forged, False, Shape.GATEWAY))
    assert refusal.status == 403


TEST = {":path": "/v1/completions", ":method": "POST", "test-epp-endpoint-selection": "10.0.0.2"}


def test_conformance_headers_name_the_selected_and_the_serving_endpoint():
    driver = Driver(models=("a", "b"), conformance_headers=True)
    driver.feed(RequestHeaders(TEST, False, Shape.GATEWAY))
    driver.feed(RequestBody(BODY, True))
    answer = driver.feed(ResponseHeaders(200, served="10.0.0.2:80"))[-1]
    told = dict(answer.set_headers)
    assert told["x-conformance-test-selected-endpoint"] == "10.0.0.2:80"
    assert told["x-conformance-test-served-endpoint"] == "10.0.0.2:80"
