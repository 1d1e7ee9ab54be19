"""Event streams are read by their standard, and a sign of life is not the first token."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.health import GOOD
from laar.protocol.answers import AnswerReader, Usage
from laar.protocol.sse import BOM
from laar.request import Api


def chunk(delta, **more):
    return {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}],
    }


def turn(kind, **more):
    echoed = {"instructions": "Be brief.", "tools": [{"type": "function", "name": "look"}]}
    response = {"id": "r", "object": "response", "model": "m", "status": "queued", "output": []}
    return {"type": kind, "sequence_number": 0, "response": {**response, **echoed, **more}}


SIGNS = {
    Api.CHAT: [
        chunk({"role": "assistant", "content": ""}),
        chunk({"role": "assistant", "content": None, "tool_calls": []}, logprobs=None),
        {**chunk({"role": "assistant"}), "prompt_progress": {"total": 9, "processed": 3}},
        {**chunk({}), "prompt_token_ids": [1, 2], "system_fingerprint": "fp", "provider": "p"},
    ],
    Api.COMPLETIONS: [{"id": "c", "model": "m", "choices": [{"index": 0, "text": ""}]}],
    Api.RESPONSES: [
        turn("response.created"),
        turn("response.in_progress", text={"format": {"type": "text"}}),
        turn("response.queued", reasoning={"effort": "low"}),
        {"type": "response.output_item.added", "item": {"id": "i", "role": "a", "content": []}},
        {"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}},
    ],
    Api.MESSAGES: [
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": []}},
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
    ],
    Api.OTHER: [
        {"object": "transcription.chunk", "choices": [{"delta": {"content": ""}}]},
        {"status": "queued", "queue_position": 3, "request_id": "r"},
        {"text": "", "meta_info": {"id": "x", "weight_version": "default"}},
        {"candidates": [{"content": {"parts": [], "role": "model"}}], "modelVersion": "g"},
        {"model": "m", "created_at": "now", "message": {"role": "a", "content": ""}},
    ],
}
TOKENS = {
    Api.CHAT: [
        chunk({"content": "Hi"}),
        chunk({"reasoning_content": "hm"}),
        chunk({"reasoning": " "}),
        chunk({"tool_calls": [{"index": 0, "id": "t", "function": {"name": "look"}}]}),
        chunk({"audio": {"data": "UklGRg=="}}),
        chunk({"refusal": "no"}),
    ],
    Api.COMPLETIONS: [
        {"choices": [{"index": 0, "text": "a"}]},
        {"choices": [{"index": 0, "text": "", "token_ids": [5]}]},
    ],
    Api.RESPONSES: [
        {"type": "response.output_text.delta", "delta": "Hi", "logprobs": []},
        {"type": "response.reasoning_text.delta", "delta": "hm"},
        {"type": "response.function_call_arguments.delta", "delta": "{"},
    ],
    Api.MESSAGES: [
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "h"}},
        {"type": "content_block_delta", "delta": {"partial_json": "{"}},
    ],
    Api.OTHER: [
        {"object": "transcription.chunk", "choices": [{"delta": {"content": "so"}}]},
        {"type": "transcript.text.delta", "delta": "so"},
        {"type": "speech.audio.delta", "audio": "UklG"},
        {"type": "image_generation.partial_image", "b64_json": "iVBO"},
        {"text": "a", "meta_info": {"id": "x"}},
        {"candidates": [{"content": {"parts": [{"text": "Hi"}], "role": "model"}}]},
        {"model_name": "m", "text_output": "a"},
        {"token": {"id": 5, "text": "a"}, "generated_text": None},
        {"model": "m", "created_at": "now", "message": {"role": "a", "content": "The"}},
        {"model": "m", "response": "The", "done": False},
        {"t": "Hel"},
    ],
}
COMMENTS = st.sampled_from(["", ": alive\n", "event: ping\ndata: {}\n\n", "retry: 5\n", "id: 7\n"])


@st.composite
def streams(draw):
    """Draw a dialect, signs of life in it, and the first token."""
    api = draw(st.sampled_from(sorted(SIGNS, key=str)))
    signs = draw(st.lists(st.sampled_from(SIGNS[api]), max_size=4))
    return api, signs, draw(st.sampled_from(TOKENS[api]))


@given(streams(), COMMENTS)
def test_the_first_token_is_the_first_event_that_says_something(drawn, comment):
    api, signs, token = drawn
    reader = AnswerReader(events=True, api=api)
    for sign in signs:
        reader.feed(f"{comment}data: {json.dumps(sign)}\n\n".encode())
        assert reader.progressed or sign == {"type": "ping"}  # which proves no progress
        assert not reader.said
    assert not reader.put_by(b": comment\n\n")  # what may hold the first token is read at once
    reader.feed(f"{comment}data: {json.dumps(token)}\n\n".encode())
    assert reader.said


@pytest.mark.parametrize("api", SIGNS)
def test_each_sign_and_each_token_of_a_dialect_is_told_apart(api):
    for says, events in ((False, SIGNS[api]), (True, TOKENS[api])):
        for event in events:
            reader = AnswerReader(events=True, api=api)
            reader.feed(f"data: {json.dumps(event)}\n\n".encode())
            assert reader.said is says, event


@st.composite
def encodings(draw, events):
    """Draw another encoding of the same events, by the standard, in chunks."""
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    parts = [BOM.decode()] if draw(st.booleans()) else []
    for event in events:
        indent = draw(st.sampled_from([None, 0, 1, 2]))
        text = event if isinstance(event, str) else json.dumps(event, indent=indent)
        space = draw(st.sampled_from(["", " "]))
        lines = [f"data:{space}{line}" for line in text.split("\n")]
        extra = st.sampled_from([": hi", "id: 4", "retry: 9", "event: x", ":"])
        for line in draw(st.lists(extra, max_size=3)):
            lines.insert(draw(st.integers(0, len(lines))), line)
        parts += [line + end for line in (*lines, "")]
    data = "".join(parts).encode()
    cuts = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=12))})
    return [data[a:b] for a, b in pairwise(cuts)]


USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 12,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 8},
    },
}


@given(st.data(), st.sampled_from([True, None]), st.booleans())
def test_any_encoding_of_the_same_events_is_read_alike_however_it_is_split(data, events, fails):
    """Also if the media type does not say that it is a stream."""
    last = {"error": {"message": "lost", "code": 500}} if fails else chunk({"content": "Hi" * 40})
    sent = [chunk({"role": "assistant", "content": ""}), last, USAGE, "[DONE]"]
    reader = AnswerReader(events=events, api=Api.CHAT, claims="" if events else "application/json")
    pieces = data.draw(encodings(sent))
    replies = [reader.feed(piece) for piece in pieces if not reader.put_by(piece)]
    replies.append(reader.end())
    found = [(reply.event, reply.found) for reply in replies if reply is not None]
    assert found == [(True, None) if fails else (False, GOOD)]
    assert reader.usage == Usage(12, 3, 8)
    assert reader.has_ended
    assert reader.said is not fails


@given(st.integers(1, 4), st.randoms(use_true_random=False))
def test_an_answer_is_finished_once_each_choice_has_its_reason(count, rng):
    reader = AnswerReader(events=True, api=Api.CHAT)
    events = [chunk({"content": "a"}, index=n) for n in range(count)]
    ends = [chunk({}, index=n, finish_reason="stop") for n in range(count)]
    rng.shuffle(ends)
    for number, event in enumerate((*events, *ends)):
        assert not reader.finished
        text = f"data: {json.dumps(event)}\n\n".encode()
        if number >= count or not reader.put_by(text):
            reader.feed(text)
    assert reader.finished
