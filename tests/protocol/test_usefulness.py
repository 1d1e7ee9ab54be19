"""Judging whether an answer is useful, in every API and for any split into chunks."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.health import GOOD, Kind
from laar.protocol.answers import AnswerReader
from laar.protocol.usefulness import flaw_of_type
from laar.request import Api


def chat(message, finish="stop", **fields):
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **fields}


def delta(found, finish=None):
    return {"choices": [{"index": 0, "delta": found, "finish_reason": finish}]}


DONE = [delta({}, "stop"), "[DONE]"]
TOOL = {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
WHOLE = [
    (Api.CHAT, chat({"content": "x"}), GOOD),
    (Api.CHAT, chat({"content": ""}), Kind.EMPTY),
    (Api.CHAT, chat({"content": " \n"}, None), Kind.EMPTY),
    (Api.CHAT, chat({"content": ""}, usage={"completion_tokens": 1}), Kind.EMPTY),
    (Api.CHAT, chat({"content": ""}, "length", usage={"completion_tokens": 1}), Kind.EMPTY),
    (Api.CHAT, chat({"content": "\t"}, "content_filter"), Kind.EMPTY),
    (Api.CHAT, chat({"content": ""}, "error"), Kind.EMPTY),
    (Api.CHAT, chat({"content": None, "refusal": "no"}), GOOD),
    (Api.CHAT, chat({"content": None, "reasoning": "so"}), GOOD),
    (Api.CHAT, chat(TOOL, "tool_calls"), GOOD),
    (Api.CHAT, {"choices": []}, Kind.EMPTY),
    (Api.CHAT, {"choices": [chat({"content": ""})["choices"][0], {"text": "b"}]}, GOOD),
    (Api.CHAT, {"status": "ok"}, Kind.UNREADABLE),
    (Api.CHAT, {}, Kind.UNREADABLE),
    (Api.COMPLETIONS, {"choices": [{"text": "x", "finish_reason": "length"}]}, GOOD),
    (Api.COMPLETIONS, {"choices": [{"text": "", "stop_reason": "END"}]}, Kind.EMPTY),
    (Api.COMPLETIONS, {"choices": [{"text": "", "logprobs": {"tokens": ["a"]}}]}, GOOD),
    (Api.MESSAGES, {"content": [{"type": "text", "text": "x"}]}, GOOD),
    (Api.MESSAGES, {"content": [{"type": "tool_use", "name": "f", "input": {}}]}, GOOD),
    (Api.MESSAGES, {"content": [], "stop_reason": "end_turn"}, Kind.EMPTY),
    (Api.RESPONSES, {"output": [{"content": [{"text": "x"}]}], "status": "completed"}, GOOD),
    (Api.RESPONSES, {"output": [], "status": "completed", "reasoning": {"summary": "auto"}},
     Kind.EMPTY),
    (Api.RESPONSES, {"output": [], "status": "queued"}, Kind.EMPTY),
    (Api.EMBEDDINGS, {"data": [{"embedding": [0.0, 1.0]}]}, GOOD),
    (Api.EMBEDDINGS, {"data": [{"embedding": "AAAA"}]}, GOOD),
    (Api.EMBEDDINGS, {"data": []}, Kind.EMPTY),
]  # fmt: skip
STREAMS = [
    (Api.CHAT, [delta({"role": "assistant", "content": ""}), delta({"content": "x"}), *DONE], GOOD),
    (Api.CHAT, [delta({"role": "assistant", "content": ""}), *DONE], Kind.EMPTY),
    (Api.CHAT, [delta({"reasoning_content": "x"}), *DONE], GOOD),
    (Api.CHAT, [delta({"tool_calls": TOOL["tool_calls"]}), *DONE], GOOD),
    (Api.CHAT, [delta({"content": ""}, "stop")], Kind.EMPTY),
    (Api.CHAT, [delta({"role": "assistant", "content": ""})], Kind.CUT),
    (Api.MESSAGES, [{"type": "message_start", "message": {"content": []}},
                    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}},
                    {"type": "message_stop"}], GOOD),
    (Api.MESSAGES, [{"type": "message_start", "message": {"content": []}},
                    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
                    {"type": "message_stop"}], Kind.EMPTY),
    (Api.RESPONSES, [{"type": "response.created", "response": {"output": []}},
                     {"type": "response.output_text.delta", "delta": "x"},
                     {"type": "response.completed", "response": {"output": []}}], GOOD),
]  # fmt: skip


def json(value):
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def replies(api, text, cuts=(), *, events):
    reader = AnswerReader(events=events, api=api)
    made = []
    for cut in cuts:
        made.append(reader.feed(text[:cut]))
        text = text[cut:]
    made += [reader.feed(text), reader.end()]
    return [reply for reply in made if reply is not None]


def found(api, text, cuts=(), *, events):
    return [reply.found for reply in replies(api, text, cuts, events=events)]


CUTS = st.lists(st.integers(1, 60), max_size=12)


@given(st.sampled_from(WHOLE), CUTS, st.sampled_from([False, None]))
def test_a_document_is_useful_if_it_has_any_content(case, cuts, events):
    api, document, verdict = case
    assert found(api, orjson.dumps(document), cuts, events=events) == [verdict]


@given(st.sampled_from(STREAMS), CUTS, st.sampled_from([True, None]))
def test_a_stream_is_useful_if_it_has_any_content_and_ends(case, cuts, events):
    api, events_of_it, verdict = case
    text = "".join(f"data: {json(event)}\n\n" for event in events_of_it).encode()
    assert found(api, text, cuts, events=events) == [verdict]


def test_a_stream_that_ends_after_its_first_words_is_cut():
    text = b"data: " + orjson.dumps(delta({"content": "x"})) + b"\n\n"
    assert found(Api.CHAT, text, events=True) == [Kind.CUT]


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", rb'"\ud83d"'])
def test_an_answer_that_python_clients_can_read_is_useful(value):
    text = orjson.dumps(chat({"content": "x"}, logprobs=0)).replace(
        b'"logprobs":0', b'"logprobs":' + value
    )
    assert found(Api.CHAT, text, events=False) == [GOOD]


def test_names_and_ids_with_half_a_surrogate_pair_can_be_written_as_json():
    text = rb'{"id":"r\ud83d","object":"response","model":"m\ud83d","output":[{"text":"x"}]}'
    reader = AnswerReader(events=False, stored=True, api=Api.RESPONSES)
    reply = reader.feed(text) or reader.end()
    assert reply is not None
    assert orjson.dumps([reader.stored_id, reply.model]) == b'["r?","m?"]'


@given(
    st.one_of(
        st.tuples(
            st.just(None),
            st.lists(st.from_regex(r"\A[a-z]{2,9}\Z"), min_size=12, unique=True).map(" ".join),
        ),
        st.tuples(
            st.just(Kind.SHORT), st.sampled_from(["yes", "<|im_end|>", "42", "\u200b", " a b "])
        ),
        st.tuples(
            st.just(Kind.REPEATED),
            st.text("ab c!\ufffd", min_size=1, max_size=15).map(lambda t: f"!{t}" * 90),
        ),
    ),
    st.booleans(),
    CUTS,
)
def test_short_answers_and_repeated_tokens_are_noted_without_a_verdict(case, events, cuts):
    seems, text = case
    if events:
        lines = [*(delta({"content": text[at : at + 3]}) for at in range(0, len(text), 3)), *DONE]
        document = "".join(f"data: {json(line)}\n\n" for line in lines).encode()
    else:
        document = json(chat({"content": text})).encode()
    (reply,) = replies(Api.CHAT, document, cuts, events=events)
    assert (reply.found, reply.seems) == (GOOD, seems)
    (other,) = replies(Api.CHAT, json(chat({"content": text + " more"})).encode(), events=False)
    assert (other.said == reply.said) is (len(text.lstrip()) >= 64)


def test_what_an_answer_says_may_be_nested_deeply():
    text = b'{"choices":' + b'[{"content":' * 400 + b'"x"' + b"}]" * 400 + b"}"
    assert found(Api.CHAT, text, events=False) == [GOOD]


@pytest.mark.parametrize(
    ("media_type", "api", "stream", "is_flaw"),
    [
        ("text/html", Api.CHAT, False, True),
        ("text/html", Api.EMBEDDINGS, False, True),
        ("application/json", Api.CHAT, False, False),
        ("application/problem+json", Api.CHAT, False, False),
        ("text/event-stream", Api.CHAT, True, False),
        ("text/event-stream", Api.CHAT, False, True),
        ("application/json", Api.CHAT, True, True),
        ("", Api.CHAT, True, False),
        ("application/x-npy", Api.EMBEDDINGS, False, False),
    ],
)
def test_an_answers_content_type_is_checked(media_type, api, stream, is_flaw):
    assert flaw_of_type(media_type, api, stream=stream) is is_flaw
