"""In the streamed shape Envoy keeps each chunk of an answer until the picker replies."""

import gzip
import json
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_stream_machine import BODY, HEADERS, Driver, headers

from laar.health import GOOD
from laar.protocol.events import (
    AnswerBody,
    Closed,
    Direction,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Shape,
)

NAMED = BODY.replace(b'"auto"', b'"m1"')
"""The endpoint's own name, so nothing needs to be restored."""


def begun(body=BODY, *, streamed=True, encoded=False):
    driver = Driver()
    driver.feed(RequestHeaders(HEADERS, False, Shape.STREAMED, body=body))
    media_type = "text/event-stream" if streamed else ""
    driver.feed(ResponseHeaders(200, streamed, media_type=media_type, encoded=encoded))
    return driver


def answered(driver, event):
    """Return the data of the replies to a chunk; None means that the chunk is unchanged."""
    return [
        action.data
        for action in driver.feed(event)
        if isinstance(action, AnswerBody) and action.direction is Direction.RESPONSE
    ]


OBJECTS = st.recursive(
    st.sampled_from(["m1", "m2", 1, None, '"model":"m1"', "{"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["model", "response", "message", "metadata"]), inner),
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["a", "model", "response", "message", "metadata"]), OBJECTS),
    st.sampled_from(["event", "document", "line"]),
    st.booleans(),
)
@example({"response": {"model": "m1", "metadata": {"model": "m1"}}}, "event", False)
def test_only_the_answers_own_name_is_restored(answer, form, spaced):
    def text(document):
        dumped = json.dumps(document, separators=None if spaced else (",", ":")).encode()
        return {"event": b"data: %b\n\n", "document": b"%b", "line": b"%b\n"}[form] % dumped

    expected = {**answer}
    if answer.get("model") == "m1":
        expected["model"] = "auto"
    for name in ("response", "message"):
        inner = answer.get(name)
        if isinstance(inner, dict) and inner.get("model") == "m1":
            expected[name] = {**inner, "model": "auto"}
    driver = Driver()
    driver.feed(RequestHeaders(HEADERS, False, Shape.STREAMED, body=BODY))
    kind = {"event": "text/event-stream", "document": "application/json"}.get(form, "x/ndjson")
    driver.feed(ResponseHeaders(200, form == "event", media_type=kind))
    pieces = answered(driver, ResponseBody(text(answer), True))
    assert [text(answer) if piece is None else piece for piece in pieces] == [text(expected)]


@pytest.mark.parametrize(
    "answer", [{"media_type": "audio/mpeg"}, {"media_type": "text/event-stream", "encoded": True}]
)
def test_answers_without_readable_names_pass_at_once(answer):
    driver = Driver()
    driver.feed(RequestHeaders(HEADERS, False, Shape.STREAMED, body=BODY))
    streamed = "event" in answer["media_type"]
    driver.feed(ResponseHeaders(200, streamed, **answer))
    assert answered(driver, ResponseBody(b"\x1f\x8b no line ends here", False)) == [None]


@given(st.lists(st.integers(0, 60), max_size=4), st.binary(max_size=9))
# The closing quote of a name does not open another name.
@example([25], b'model":"m1"')
def test_every_chunk_is_answered_and_the_bytes_equal_the_complete_answer(places, noise):
    text = b'data: {"model":"m1","a":"\\"model\\": "}\n\ndata: {"model": "m1"}\n\n'
    text += noise + b'"model":"m2"' + noise + b'"model":"m1"' + noise + b'"model":"m'
    cuts = sorted({0, *places, len(text)})
    pieces = [text[a:b] for a, b in pairwise(cuts)]
    driver = begun()
    answers = []
    for number, piece in enumerate(pieces):
        answers += [
            piece if data is None else data
            for data in answered(driver, ResponseBody(piece, number == len(pieces) - 1))
        ]
    for name in (b'"model":', b'"model": '):
        text = text.replace(name + b'"m1"', name + b'"auto"')
    assert b"".join(answers) == text
    assert len(answers) == len(pieces)


def test_trailers_release_held_bytes():
    driver = begun()
    assert answered(driver, ResponseBody(b'{"x":"', False)) == []
    assert answered(driver, ResponseTrailers()) == [None]


@pytest.mark.parametrize(
    ("shape", "status", "can"),
    [
        (Shape.NATIVE, 200, True),
        (Shape.STREAMED, 200, True),
        (Shape.STREAMED, None, True),
        (Shape.GATEWAY, 200, False),
    ],
)
def test_a_stopping_picker_ends_streams_that_envoy_can_finish(shape, status, can):
    driver = Driver()
    driver.feed(headers(shape))
    assert not driver.stream.can_be_let_go  # before the decision
    driver.feed(RequestBody(BODY, True))
    if status is not None:
        driver.feed(ResponseHeaders(status, True))
    assert driver.stream.can_be_let_go is can


def test_an_answer_whose_stream_was_ended_early_is_not_complete():
    driver = begun()
    driver.feed(ResponseBody(b"data: 1\n\n", False))
    driver.stream.answer.let_go = True
    driver.feed(Closed())
    assert [end.cause for end in driver.recorder.ends] == ["disconnect"]


DELTA = b'data: {"choices":[{"delta":{"content":"b"}}],"usage":{"prompt_tokens":7}}\n\n'
STOP = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'
COMPLETED = b'data: {"type":"response.completed","response":{"usage":{"input_tokens":7}}}\n\n'


@pytest.mark.parametrize("put_by", [False, True])
@pytest.mark.parametrize(
    ("path", "events", "cause", "tokens"),
    [
        ("/v1/chat/completions", [DELTA, b"data: [DONE]\n\n"], "complete", 7),
        ("/v1/chat/completions", [DELTA], "reset", None),
        ("/v1/responses", [b"event: response.completed\n", COMPLETED], "complete", 7),
        ("/v1/responses", [b'data: {"type":"response.output_text.delta"}\n\n'], "reset", None),
        ("/v1/messages", [STOP], "complete", None),
    ],
)
def test_an_answer_is_complete_if_the_client_closes_after_its_last_event(
    path, events, cause, tokens, put_by
):
    driver = Driver()
    head = {**HEADERS, ":path": path}
    driver.feed(RequestHeaders(head, False, Shape.STREAMED, body=NAMED))
    driver.feed(ResponseHeaders(200, True))
    driver.feed(ResponseBody(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', False))
    for event in events:
        if not (put_by and driver.stream.answer.put_by(event, driver.now)):
            driver.feed(ResponseBody(event, False))
    driver.feed(Closed())
    (end,) = driver.recorder.ends
    assert (end.cause, end.prompt_tokens) == (cause, tokens)


def test_an_answer_is_judged_by_the_events_that_waited_when_its_client_left():
    driver = begun(NAMED.replace(b"{", b'{"stream":true,', 1))
    driver.feed(ResponseBody(DELTA, False))
    assert driver.stream.answer.put_by(
        DELTA.replace(b'"b"', b'"%b"' % (b"words " * 20)), driver.now
    )
    driver.feed(Closed())
    assert [reply.found for reply, _ in driver.recorder.replies] == [None, GOOD]
    assert [end.cause for end in driver.recorder.ends] == ["reset"]


def test_events_that_waited_are_no_progress_when_the_client_leaves():
    driver = begun(NAMED.replace(b"{", b'{"stream":true,', 1))
    driver.feed(ResponseBody(DELTA, False))
    assert driver.stream.answer.put_by(DELTA, driver.now)
    with mock.patch.object(driver.recorder, "answering") as answering:
        driver.now += 30.0
        driver.feed(Closed())
    answering.assert_not_called()


def test_a_compressed_stream_shows_when_its_answer_begins():
    driver = begun(NAMED, encoded=True)
    driver.feed(ResponseBody(gzip.compress(b'data: {"model":"m1"}\n\n'), False))
    driver.feed(ResponseBody(b"", True))
    (end,) = driver.recorder.ends
    assert end.ttft_s is not None
    assert end.cause == "complete"


def test_the_name_is_restored_in_an_answer_too_long_to_hold_back():
    driver = Driver()
    head = {**HEADERS, ":path": "/v1/messages"}
    driver.feed(RequestHeaders(head, False, Shape.STREAMED, body=BODY))
    driver.feed(ResponseHeaders(200, media_type="application/json"))
    begin, rest = b'{"model":"m1","text":"', b"x" * 700_000
    assert answered(driver, ResponseBody(begin, False)) == []
    assert answered(driver, ResponseBody(rest, False)) == []
    passed, *others = answered(driver, ResponseBody(rest, False))
    assert passed == b'{"model":"auto","text":"' + 2 * rest
    assert others == [b"", b""]
    assert answered(driver, ResponseBody(b'"}', True)) == [None]
