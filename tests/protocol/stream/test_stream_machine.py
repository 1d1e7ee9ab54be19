"""The stream machine in both shapes, and for every order of events from Envoy and gateways."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.errors import RequestError
from laar.fleet.membership import EndpointSpec
from laar.plugins.stored import StoredObjects
from laar.policies import POLICY_NAMES
from laar.protocol.events import (
    AnswerBody,
    AnswerHeaders,
    AnswerTrailers,
    Ask,
    Closed,
    Decided,
    Direction,
    Failed,
    HasRead,
    Immediate,
    Read,
    Refused,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Shape,
)
from laar.protocol.openai import ASIDE_BYTES, try_read
from laar.protocol.stream import CHUNK_BYTES, Environment, HeldBytes, Stream, StreamSettings
from laar.request import Api
from support.directors import director_of
from support.exploring import examples
from support.recorders import Recording, decided

HEADERS = {":path": "/v1/chat/completions", ":method": "POST", "x-request-id": "r1"}
NAMED = [Shape.NATIVE, Shape.STREAMED, Shape.GATEWAY]
BODY = orjson.dumps({"model": "auto", "messages": [{"role": "user", "content": "hello"}]})


class Driver:
    """Drives a stream with a real director, and collects its actions."""

    def __init__(self, *, read_answer=False, models=("m1",), held=None, **settings):
        self.director = director_of(
            *(EndpointSpec(address=f"10.0.0.{i}:80", models=(m,)) for i, m in enumerate(models, 1))
        )
        self.recorder = Recording(self.director)
        self.stream = Stream(
            Environment(
                settings=StreamSettings(**{"max_body_bytes": 1 << 20, **settings}),
                sampled=lambda _now: read_answer,
                new_id=lambda: "made-id",
                held=held,
                recorder=self.recorder,
            )
        )
        self.now = 0.0
        self.log = []

    def feed(self, event):
        """Feed an event; answer `Ask` as the server does; return this event's other actions."""
        start = len(self.log)
        self.now += 1.0
        pending = event
        while pending is not None:
            actions, pending = self.stream.receive(pending, self.now), None
            for action in actions:
                match action:
                    case Ask(request):
                        try:
                            pending = Decided(self.director.decide(request, self.now), 42)
                        except RequestError as error:
                            pending = Refused(error)
                    case _:
                        self.log.append(action)
        return self.log[start:]

    def answers(self, kind, direction):
        return [a for a in self.log if type(a) is kind and a.direction is direction]

    def sent(self, direction):
        """Return the body that Envoy forwards, from the chunks of the gateway shape."""
        return b"".join(a.data for a in self.answers(AnswerBody, direction))


def headers(shape, *, end=False, extra=(), subset=None):
    own = shape is not Shape.GATEWAY  # laar's own Envoys name a number of attempts
    return RequestHeaders({**HEADERS, **dict(extra)}, end, shape, subset, attempts=int(own))


# -- native --------------------------------------------------------------------------------------


def test_native_headers_are_answered_immediately_and_the_body_with_the_decision():
    driver = Driver()
    (first,) = driver.feed(headers(Shape.NATIVE))
    assert first == AnswerHeaders(Direction.REQUEST, [])
    (second,) = driver.feed(RequestBody(BODY, True))
    assert second.decided.destination == "10.0.0.1:80"
    changed = dict(second.decided.set_headers)
    assert changed["x-gateway-destination-endpoint"] == "10.0.0.1:80"
    assert orjson.loads(second.data)["model"] == "m1"
    assert changed["content-length"] == str(len(second.data))


def test_a_sampled_native_request_requests_and_reads_its_answer():
    driver = Driver(read_answer=True)
    driver.feed(headers(Shape.NATIVE))
    driver.feed(RequestBody(BODY, True))
    (answer,) = driver.feed(ResponseHeaders(200))
    assert answer.read_answer
    driver.feed(ResponseBody(b'{"usage":{"prompt_tokens":9,', False))
    driver.feed(ResponseBody(b'"completion_tokens":2}}', True))
    (end,) = driver.recorder.ends
    assert (end.prompt_tokens, end.completion_tokens) == (9, 2)
    assert (end.ttft_s, end.latency_s) == (2.0, 3.0)
    assert [a.data for a in driver.answers(AnswerBody, Direction.RESPONSE)] == [None, None]


@pytest.mark.parametrize(
    ("shape", "read", "streamed", "seen"),
    [
        (Shape.NATIVE, False, True, False),
        (Shape.NATIVE, True, True, True),
        (Shape.NATIVE, True, False, False),
        (Shape.GATEWAY, False, True, True),
        (Shape.GATEWAY, False, False, False),
    ],
)
def test_first_tokens_are_seen_in_streamed_answers_that_are_read(shape, read, streamed, seen):
    driver = Driver(read_answer=read)
    driver.feed(headers(shape))
    driver.feed(RequestBody(orjson.dumps({**orjson.loads(BODY), "stream": streamed}), True))
    assert driver.stream.decision.request.first_token_seen is seen


@pytest.mark.parametrize(("status", "ok"), [(200, True), (503, False)])
def test_a_refusals_first_byte_is_distinguished_from_an_answers(status, ok):
    driver = Driver()
    driver.feed(headers(Shape.GATEWAY))
    driver.feed(RequestBody(BODY, True))
    driver.feed(ResponseHeaders(status))
    driver.feed(ResponseBody(b"{", False))
    assert driver.recorder.began == [ok]


# -- gateway -------------------------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(
    cuts=st.lists(st.integers(0, 200_000), max_size=6),
    size=st.sampled_from([0, 10, CHUNK_BYTES, 2 * CHUNK_BYTES + 1, 150_000]),
    trailers=st.booleans(),
    doubled_end=st.booleans(),
)
def test_any_split_of_the_body_yields_the_same_decision_and_bytes(
    cuts, size, trailers, doubled_end
):
    body = orjson.dumps({"messages": [{"role": "user", "content": "x" * size}], "model": "auto"})
    driver = Driver()
    assert driver.feed(headers(Shape.GATEWAY)) == []
    marks = sorted({cut % (len(body) + 1) for cut in cuts})
    pieces = [body[a:b] for a, b in zip([0, *marks], [*marks, len(body)], strict=True)]
    for i, piece in enumerate(pieces):
        last = i == len(pieces) - 1
        driver.feed(RequestBody(piece, last and not trailers))
    if trailers:
        driver.feed(RequestTrailers())
    if doubled_end:
        before = len(driver.log)
        driver.feed(RequestBody(pieces[-1], True))
        assert len(driver.log) == before
    assert type(driver.log[0]) is AnswerHeaders
    assert driver.log[0].destination == "10.0.0.1:80"
    sent = driver.sent(Direction.REQUEST)
    assert sent == body.replace(b'"model":"auto"', b'"model":"m1"')
    answers = driver.answers(AnswerBody, Direction.REQUEST)
    assert all(len(a.data) <= CHUNK_BYTES for a in answers)
    assert [a.end for a in answers] == [False] * (len(answers) - 1) + [not trailers]
    assert len(driver.answers(AnswerTrailers, Direction.REQUEST)) == int(trailers)
    assert (type(driver.log[-1]) is AnswerTrailers) is trailers


def test_the_answer_passes_chunk_by_chunk_with_the_clients_model_name():
    driver = Driver()
    driver.feed(headers(Shape.GATEWAY))
    driver.feed(RequestBody(BODY, True))
    driver.feed(ResponseHeaders(200, streamed=True))
    for piece in (b'data: {"model":"m', b'1","choices":[]}\n\n', b"data: [DONE]\n\n"):
        driver.feed(ResponseBody(piece, False))
    driver.feed(ResponseBody(b"", True))
    assert driver.sent(Direction.RESPONSE) == (
        b'data: {"model":"auto","choices":[]}\n\ndata: [DONE]\n\n'
    )
    assert [end.cause for end in driver.recorder.ends] == ["complete"]


def test_unfinished_bodies_of_all_streams_share_one_limit():
    held = HeldBytes(1000)
    first, second, third = (Driver(held=held) for _ in range(3))
    for driver in (first, second, third):
        driver.feed(headers(Shape.GATEWAY))
    first.feed(RequestBody(BODY[:-1] + b" " * 800, False))
    (refused,) = second.feed(RequestBody(b"x" * 600, False))
    assert (refused.status, dict(refused.headers)["retry-after"]) == (503, "1")
    assert dict(refused.headers)["x-laar-reason"] == "bodies-full"
    first.feed(RequestBody(BODY[-1:], True))
    assert first.answers(AnswerHeaders, Direction.REQUEST)[0].destination
    assert third.feed(RequestBody(b"x" * 600, False)) == []
    third.feed(Closed())
    assert held.now_bytes == 0


def upload(held, at, count, body=b"x"):
    """Return a driver whose client has sent the beginning of a body."""
    driver = Driver(held=held)
    driver.now = at
    driver.feed(headers(Shape.GATEWAY))
    assert driver.feed(RequestBody(body * count, False)) == []
    return driver


@pytest.mark.parametrize("event", [RequestBody(b"x", True), RequestTrailers(), Failed()])
def test_slow_uploads_are_evicted_largest_first(event):
    held = HeldBytes(1_000_000)
    large, small, other = (upload(held, 0.0, n) for n in (500_000, 300_000, 190_000))
    for at in range(2, 30):  # one upload continues, as over a slow connection
        other.now = at
        assert other.feed(RequestBody(b" ", False)) == []
        large.now = small.now = at
        small.feed(RequestBody(b"", False))
    assert held.now_bytes == 990_028
    late = upload(held, 30.0, 60_000)
    assert held.now_bytes == 550_028  # without the largest
    (refused,) = large.feed(event)
    assert dict(refused.headers)["x-laar-reason"] == "bodies-full"
    for driver in (large, small, other, late):
        driver.feed(Closed())
    assert held.now_bytes == 0


def test_a_body_whose_first_chunk_is_empty_leaves_nothing_to_evict():
    """Its bytes were never counted, so evicting it again and again would make no room."""
    held = HeldBytes(100)
    first, second = (Driver(held=held) for _ in range(2))
    for driver in (first, second):
        driver.feed(headers(Shape.GATEWAY))
    first.feed(RequestBody(b"", False))
    first.feed(RequestBody(BODY, True))
    first.feed(Closed())
    second.now += 60.0
    (refused,) = second.feed(RequestBody(b" " * 101, False))
    assert (refused.status, dict(refused.headers)["x-laar-reason"]) == (503, "bodies-full")


def test_complete_bodies_that_wait_to_be_read_share_the_same_limit():
    body = BODY[:-1] + b" " * ASIDE_BYTES + b"}"
    held = HeldBytes(2 * len(body))
    drivers = [Driver(held=held, max_body_bytes=4 << 20) for _ in range(4)]
    for driver in drivers:
        driver.feed(headers(Shape.NATIVE))
    first, second, third, fourth = drivers
    for driver in (first, second):
        (read,) = driver.feed(RequestBody(body, True))
        assert type(read) is Read
    (refused,) = third.feed(RequestBody(body, True))
    assert (refused.status, dict(refused.headers)["x-laar-reason"]) == (503, "bodies-full")
    (answer,) = first.feed(HasRead(try_read(Api.CHAT, body)))
    assert answer.decided.destination
    second.feed(Closed())
    assert held.now_bytes == 0
    (read,) = fourth.feed(RequestBody(body, True))
    assert type(read) is Read


def test_an_opaque_upload_continues_while_the_answer_arrives():
    driver = Driver()
    opaque = {":path": "/v1/files", ":method": "POST"}
    (first,) = driver.feed(RequestHeaders(opaque, False, Shape.GATEWAY))
    assert first.destination
    driver.feed(RequestBody(b"\x00\xff", False))
    driver.feed(ResponseHeaders(200))
    driver.feed(RequestBody(b"more", True))
    driver.feed(ResponseBody(b"ok", True))
    assert driver.sent(Direction.REQUEST) == b"\x00\xffmore"
    assert driver.sent(Direction.RESPONSE) == b"ok"


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_stored_answer_is_known_from_its_first_event(cut):
    driver = Driver(models=("m", "m", "m"))
    path = {":path": "/v1/responses"}
    body = b'{"model": "m", "input": "x", "stream": true}'
    driver.feed(RequestHeaders(path, False, Shape.NATIVE, attempts=1, body=body))
    driver.feed(ResponseHeaders(200, streamed=True))
    begun = b'data: {"response": {"id": "resp_9", "object": "response", "status": "queued"}}\n\n'
    driver.feed(ResponseBody(begun[:cut], False))
    driver.feed(ResponseBody(begun[cut:], False))
    kept = driver.director.plugins.get(StoredObjects).latest(9)
    first, *_ = driver.log[0].decided.destination.split(",")
    assert kept == [("resp_9", first, "resp_9", "")]
    driver.feed(ResponseBody(begun.replace(b"queued", b"completed"), True))
    assert driver.director.plugins.get(StoredObjects).latest(9) == kept


# -- both ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "conversation", "tenant"),
    [
        ("/v1/conversations/c1/items?limit=2", "c1", None),
        ("/v1/conversations", "", None),
        ("/v1/files/f1/content", "", "t"),
        ("/v1/batches", "", "t"),
    ],
)
def test_a_path_names_a_conversation_or_what_is_stored_by_tenant(path, conversation, tenant):
    driver, asked = Driver(), []
    decide = driver.director.decide
    driver.director.decide = lambda request, now: asked.append(request) or decide(request, now)
    of = {":path": path, ":method": "GET", "x-gateway-inference-fairness-id": "t"}
    driver.feed(headers(Shape.GATEWAY, end=True, extra=of.items()))
    assert [(one.conversation_id, one.stays_as) for one in asked] == [(conversation, tenant)]


@pytest.mark.parametrize("shape", NAMED)
def test_an_upgrade_is_answered_before_any_body(shape):
    driver = Driver()
    upgrade = {"upgrade": "websocket", ":method": "GET"}
    (answer,) = driver.feed(headers(shape, extra=upgrade.items()))
    assert answer.destination
    assert answer.skip_body is (shape is not Shape.GATEWAY)


@pytest.mark.parametrize("shape", NAMED)
def test_control_headers_are_removed_and_the_destination_is_overwritten(shape):
    driver = Driver()
    forged = {"x-gateway-destination-endpoint": "6.6.6.6:80", "x-laar-task": "t"}
    driver.feed(headers(shape, extra=forged.items()))
    driver.feed(RequestBody(BODY, True))
    sent = next(of for a in driver.log if (of := decided(a)) and of.destination)
    task = () if shape is Shape.GATEWAY else ("x-laar-task",)  # another's route may match it
    assert sent.remove_headers == task
    assert dict(sent.set_headers)["accept-encoding"] == "identity"
    assert dict(sent.set_headers)["x-gateway-destination-endpoint"] == "10.0.0.1:80"


@pytest.mark.parametrize("shape", NAMED)
@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"nonsense", 400, "bad-request"),
        (b"", 400, "bad-request"),
        (b'{"model":"nobody","messages":[{"role":"user","content":"x"}]}', 404, "unknown-model"),
    ],
)
def test_a_bad_request_is_answered_by_laar(shape, body, status, reason):
    driver = Driver()
    driver.feed(headers(shape))
    *_, refused = driver.feed(RequestBody(body, True))
    assert type(refused) is Immediate
    assert refused.status == status
    assert ("x-laar-reason", reason) in refused.headers
    assert orjson.loads(refused.body)["error"]["code"] == reason


def test_without_endpoints_the_answer_is_a_503_with_retry_after():
    driver = Driver(models=())
    driver.feed(headers(Shape.GATEWAY))
    (refused,) = driver.feed(RequestBody(BODY, True))
    assert refused.status == 503
    assert ("retry-after", "1") in refused.headers


def test_response_headers_show_the_decision():
    driver = Driver(models=("m1", "m2"))
    driver.feed(headers(Shape.NATIVE, extra={"x-laar-tried-models": "m1,nobody"}.items()))
    driver.feed(RequestBody(BODY, True))
    (answer,) = driver.feed(ResponseHeaders(200))
    told = dict(answer.set_headers)
    assert told["x-laar-model"] == "m2"
    assert told["x-laar-endpoint"] == "10.0.0.2:80"
    assert told["x-laar-tried-models"] == "m1,m2"
    assert told["x-laar-exhausted"] == "true"
    assert told["x-laar-reason"] == "laar"
    assert told["x-laar-overhead-us"] == "42"
    assert float(told["x-laar-cost-ms"]) > 0


@pytest.mark.parametrize("shape", NAMED)
@pytest.mark.parametrize("allowed", [None, True, False])
@pytest.mark.parametrize("policy", [*POLICY_NAMES, "unknown", ""])
def test_a_client_chooses_the_policy_only_where_the_settings_allow_it(shape, allowed, policy):
    driver = Driver(**({} if allowed is None else {"allow_policy_header": allowed}))
    driver.feed(headers(shape, extra={"x-laar-policy": policy}.items()))
    driver.feed(RequestBody(BODY, True))
    answer, *_ = driver.feed(ResponseHeaders(200))
    used = policy if allowed and policy in POLICY_NAMES else "laar"
    assert driver.stream.decision.policy == used
    ignored = {} if allowed or not policy else {"x-laar-ignored": "x-laar-policy"}
    assert {n: v for n, v in answer.set_headers if n == "x-laar-ignored"} == ignored


def test_a_retry_by_envoy_moves_the_reservation():
    driver = Driver(models=("m", "m"))
    driver.feed(headers(Shape.NATIVE))
    driver.feed(RequestBody(BODY, True))
    picked = driver.stream.decision.address
    other = {"10.0.0.1:80": "10.0.0.2:80", "10.0.0.2:80": "10.0.0.1:80"}[picked]
    (answer,) = driver.feed(ResponseHeaders(200, served=other))
    assert dict(answer.set_headers)["x-laar-endpoint"] == other
    table = driver.director.table
    assert table.in_flight[table.slot(picked)] == 0
    assert table.in_flight[table.slot(other)] == 1


EVENTS = st.sampled_from(
    [
        headers(Shape.NATIVE),
        headers(Shape.GATEWAY),
        headers(Shape.GATEWAY, end=True),
        RequestHeaders(HEADERS, False, Shape.NATIVE, body=BODY),
        RequestBody(BODY, True),
        RequestBody(b"{", False),
        RequestTrailers(),
        ResponseHeaders(200),
        ResponseHeaders(500, end=True),
        ResponseHeaders(None),
        ResponseBody(b"x", False),
        ResponseBody(b"", True),
        ResponseTrailers(),
    ]
)


@pytest.mark.long
@settings(max_examples=examples(300))
@given(st.lists(EVENTS, max_size=12), st.booleans())
def test_any_sequence_of_events_leaves_nothing_reserved(events, read_answer):
    held = HeldBytes(1 << 20)
    driver = Driver(read_answer=read_answer, models=("a", "b"), held=held)
    for event in events:
        driver.feed(event)
    driver.feed(Closed())
    table = driver.director.table
    assert not table.in_flight.any()
    assert not table.queued_tokens.any()
    assert not table.prefill_tokens.any()
    assert held.now_bytes == 0
    assert len({id(decision) for decision in driver.recorder.decisions}) <= 1


# -- native, where Envoy keeps the headers -------------------------------------------------------
