"""The usage in an answer is read, and names are restored, for any split into chunks."""

import gzip
import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.errors import RequestError
from laar.health import GOOD, Kind
from laar.protocol.answers import (
    MAX_ANSWER_BYTES,
    AnswerReader,
    Usage,
    error_body,
)
from laar.request import Api
from support.speed import times_as_long

EVENTS = (
    b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\r\n\r\n'
    b'data:{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":1}}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":8}}}\n\n'
    b"data: [DONE]\n\n"
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Split bytes at positions taken modulo their length."""
    marks = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *marks], [*marks, len(data)], strict=True)]


@pytest.mark.parametrize(
    "choice",
    [
        {"message": {"tool_calls": [{"function": "DEEP"}]}},
        {"message": {"content": "a"}, "logprobs": {"content": [{"logprob": "LONG"}]}},
    ],
)
def test_values_that_no_engine_writes_do_not_fail_the_reader(choice):
    document = orjson.dumps({"choices": [choice], "usage": {"prompt_tokens": 5}})
    document = document.replace(b'"DEEP"', b"[" * 1015 + b"]" * 1015)
    document = document.replace(b'"LONG"', b"9" * 400)
    reader = AnswerReader(events=False, api=Api.CHAT)
    reader.feed(document)
    reader.end()
    assert reader.usage == Usage(5)


@given(
    st.lists(st.integers(0, 10_000), max_size=8),
    st.sampled_from([bytes, gzip.compress, zlib.compress]),
)
def test_usage_is_the_same_for_any_split_of_a_stream_however_it_is_compressed(places, compress):
    reader = AnswerReader(events=True, compressed=compress is not bytes, api=Api.CHAT)
    for piece in cut(compress(EVENTS), places):
        if not reader.put_by(piece):
            reader.feed(piece)
    found = reader.end()
    assert (reader.usage, found and found.found) == (Usage(12, 3, 8), GOOD)


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_what_cannot_be_decompressed_is_a_failure_unless_the_client_asked_for_it(events, asked):
    reader = AnswerReader(events=events, compressed=True, asked=asked, api=Api.CHAT)
    found = [reader.feed(b"\x1b\x0b of brotli"), reader.feed(b"more"), reader.end()]
    assert [each.found for each in found if each] == [GOOD if asked else Kind.UNREADABLE]


@pytest.mark.parametrize("events", [False, True])
def test_an_answer_that_grows_too_much_is_read_no_further_and_no_failure(events):
    reader = AnswerReader(events=events, compressed=True, api=Api.CHAT)
    size = 32 << 20
    bomb = gzip.compress(EVENTS + b" " * size)
    found = [reader.feed(bomb[at : at + 1000]) for at in range(0, len(bomb), 1000)]
    found.append(reader.end())
    assert [each.found for each in found if each] == [GOOD]
    assert size + reader._room_bytes > size / 2  # most of it was never made


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 2}}, Usage(5, 2, None)),
        (
            {"usage": {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 3}}},
            Usage(5, None, 3),
        ),
        ({"response": {"usage": {"input_tokens": 1, "output_tokens": 2}}}, Usage(1, 2, None)),
        (
            {"usage": {"input_tokens": 50, "cache_read_input_tokens": 900, "output_tokens": 2}},
            Usage(950, 2, 900),
        ),
        (
            {
                "usage": {
                    "input_tokens": 50,
                    "cache_read_input_tokens": 0,
                    "cache_creation_input_tokens": 900,
                }
            },
            Usage(950, None, 0),
        ),
        ({"usage": {"prompt_tokens": 950, "cache_read_input_tokens": 900}}, Usage(950, None, 900)),
        (
            {"usage": {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 160}}},
            Usage(50),
        ),
        ({"usage": {"prompt_tokens": -5, "completion_tokens": "many"}}, Usage()),
        ({"usage": None}, Usage()),
        ([1], Usage()),
    ],
)
def test_usage_is_read_from_unstreamed_answers_of_every_api(document, usage):
    reader = AnswerReader(events=False)
    reader.feed(orjson.dumps(document))
    reader.end()
    assert reader.usage == usage


def test_a_refusal_has_the_format_of_openai_and_of_anthropic_with_its_reason_as_code():
    body = orjson.loads(error_body(RequestError(404, "unknown-model", "no such model"), "req-1"))
    assert body == {
        "type": "error",
        "error": {
            "message": "no such model",
            "type": "not_found_error",
            "param": None,
            "code": "unknown-model",
        },
        "request_id": "req-1",
    }


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"id": "resp_9", "object": "response"}, "resp_9"),
        ({"id": "c", "object": "conversation"}, "c"),
        ({"id": "x", "object": "chat.completion"}, ""),
        ({"id": "x" * 500, "object": "response"}, ""),
        ({"id": 5, "object": "response"}, ""),
        ({"response": [1]}, ""),
        ({"id": "x", "object": ["response"]}, ""),
        ({"object": "list", "data": [{"id": "c", "object": "conversation"}]}, ""),
    ],
)
def test_the_id_of_a_stored_object_is_read_from_a_whole_answer(document, name):
    reader = AnswerReader(events=False, stored=True)
    reader.feed(orjson.dumps(document))
    reader.end()
    assert reader.stored_id == name


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("cut", [50_000, 3_000_000])
def test_the_id_of_a_stored_answer_is_read_however_long_the_answer_is(events, cut):
    answer = {
        "id": "resp_9",
        "object": "response",
        "output": [{"id": "x", "text": "a" * 2_000_000}],
    }
    event = {"type": "response.created", "response": answer}
    text = b"data: %s\n\n" % orjson.dumps(event) if events else orjson.dumps(answer)
    reader = AnswerReader(events=events, stored=True)
    for at in range(0, len(text), cut):
        reader.feed(text[at : at + cut])
    reader.end()
    assert reader.stored_id == "resp_9"
    other = AnswerReader(events=events)
    other.feed(text)
    assert other.stored_id == ""


ERRORS = [
    (True, b'data: {"error": {"message": "x", "code": 500}}\n\ndata: [DONE]\n\n'),
    (True, b'data: {"choices": []}\n\ndata: {"error":{"message":"later"}}\n\n'),
    (True, b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'),
    (True, b'data: {"object": "error", "message": "old vLLM"}\n\n'),
    (False, b'{"error": {"message": "x", "code": 500}}'),
    (False, b' {"object":"error","message":"x"}'),
]


@given(st.sampled_from(ERRORS), st.lists(st.integers(1, 40), max_size=12))
def test_an_error_is_found_for_any_split_of_the_answer(case, cuts):
    events, body = case
    assert any(spotted(events, body, cuts))


def spotted(events, body, cuts):
    reader = AnswerReader(events=events)
    found = []
    for cut in cuts:
        found.append(reader.feed(body[:cut]))
        body = body[cut:]
    found.append(reader.feed(body))
    found.append(reader.end())
    return [reply for reply in found if reply is not None and reply.event]


def test_an_answer_in_tiny_chunks_takes_time_in_proportion_to_its_chunks():
    """Copying all earlier bytes for each chunk took 250 times as long."""

    def fed(chunks):
        reader = AnswerReader(events=False)
        for _ in range(chunks):
            reader.feed(b"xx")

    chunks = MAX_ANSWER_BYTES // 2
    assert times_as_long(lambda: fed(chunks), lambda: fed(chunks // 16), tries=3) < 64
