"""A simulated endpoint answers real clients as vLLM does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from sim_endpoint import Running, events, running

from laar_lab.tokens import count_tokens
from support import eventually

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Hello there"}]}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sim() -> AsyncIterator[Running]:
    async with running(served_names=("sim", "auto"), max_model_len=1000) as endpoint:
        yield endpoint


# Chats.


async def test_a_chat_answer_has_the_first_name_and_text_and_usage(sim: Running) -> None:
    done = await sim.openai.chat.completions.create(**CHAT, max_tokens=7)
    assert done.model == "sim"
    assert done.choices[0].finish_reason == "length"
    assert count_tokens(done.choices[0].message.content or "") == 7
    assert done.usage is not None
    rendered = "<|user|>\nHello there\n<|assistant|>\n"
    assert done.usage.prompt_tokens == count_tokens(rendered)
    assert done.usage.total_tokens == done.usage.prompt_tokens + 7


async def test_a_chat_stream_has_role_text_finish_reason_usage_and_done(sim: Running) -> None:
    body = {**CHAT, "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}}
    whole = await sim.openai.chat.completions.create(**CHAT, max_tokens=9)
    stream = await sim.http.post("/v1/chat/completions", json=body)
    assert stream.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events(stream.text)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 9
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
    assert [delta["finish_reason"] for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1]["finish_reason"] == "length"
    text = "".join(delta["delta"]["content"] for delta in deltas)
    assert text == whole.choices[0].message.content
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_distant_endpoint_answers_a_round_trip_later() -> None:
    async with running(round_trip_s=0.3) as far:
        for path in ("/health", "/metrics", "/v1/models"):
            began = asyncio.get_running_loop().time()
            assert (await far.http.get(path)).status_code == 200
            assert asyncio.get_running_loop().time() - began >= 0.3


# The other routes that generate text.


async def test_a_text_and_its_ids_share_the_prefix_cache(sim: Running) -> None:
    prompt = "word " * 200
    tokens = (await sim.http.post("/tokenize", json={"prompt": prompt})).json()
    assert tokens["count"] == len(tokens["tokens"]) == count_tokens(prompt)
    assert tokens["max_model_len"] == 1000
    await sim.openai.completions.create(model="sim", prompt=prompt)
    again = await sim.openai.completions.create(model="sim", prompt=tokens["tokens"])
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    # 167 tokens fill ten blocks of 16.
    assert again.usage.prompt_tokens_details.cached_tokens == 160


async def test_a_responses_stream_ends_with_the_complete_answer(sim: Running) -> None:
    whole = await sim.openai.responses.create(model="sim", input="Hi", max_output_tokens=8)
    assert whole.status == "incomplete"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 8
    seen = [
        event
        async for event in await sim.openai.responses.create(model="sim", input="Hi", stream=True)
    ]
    deltas = "".join(e.delta for e in seen if e.type == "response.output_text.delta")
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[0].type == "response.created"
    last = seen[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == deltas
    assert deltas.startswith(whole.output_text)


async def test_messages_are_answered_complete_or_streamed(sim: Running) -> None:
    body = {
        "model": "sim",
        "max_tokens": 6,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    }
    whole = (await sim.http.post("/v1/messages", json=body)).json()
    assert whole["stop_reason"] == "max_tokens"
    assert whole["usage"]["output_tokens"] == 6
    stream = events((await sim.http.post("/v1/messages", json={**body, "stream": True})).text)
    kinds = [event["type"] for event in stream]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(e["delta"]["text"] for e in stream if e["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]

    def prompt_tokens(usage: dict[str, int]) -> int:
        return usage["input_tokens"] + usage["cache_read_input_tokens"]

    assert prompt_tokens(stream[0]["message"]["usage"]) == prompt_tokens(whole["usage"])


async def test_embeddings_are_unit_vectors_determined_by_the_text(sim: Running) -> None:
    made = await sim.openai.embeddings.create(model="sim", input=["one", "two", "one"])
    first, second, third = (np.array(item.embedding) for item in made.data)
    assert first.tolist() == third.tolist() != second.tolist()
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-6)
    body = {"input": "one", "encoding_format": "float"}
    plain = (await sim.http.post("/v1/embeddings", json=body)).json()
    assert plain["data"][0]["embedding"] == first.tolist()
    assert plain["usage"]["prompt_tokens"] == 1


# Refusals.


async def test_an_unknown_model_gets_a_404_in_the_error_format(sim: Running) -> None:
    import openai  # this import takes a second, so only here

    with pytest.raises(openai.NotFoundError) as refused:
        await sim.openai.chat.completions.create(**{**CHAT, "model": "nope"})
    assert refused.value.response.json()["error"] == {
        "message": "The model `nope` does not exist. Valid aliases: sim, auto.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x" * 6000}, None),
        ({"prompt": "a", "max_tokens": 1000}, "max_tokens"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": "a", "priority": 1.5}, "priority"),
        ({"prompt": "a", "priority": "high"}, "priority"),
        ({"prompt": "a", "priority": 10**20}, "priority"),
        ({"prompt": "a", "n": 2}, "n"),
        ({}, "prompt"),
        ([], None),
    ],
)
async def test_bad_requests_get_a_400_before_a_stream_begins(
    sim: Running, body: object, param: str | None
) -> None:
    if isinstance(body, dict):
        body = {**body, "stream": True}
    answer = await sim.http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("BadRequestError", 400)
    assert (error["param"] or "").split(".")[0] == (param or "")


# Cache and priority.


async def test_a_repeated_prompt_is_cached_up_to_its_last_full_block(sim: Running) -> None:
    prompt = "y" * (6 * 16 * 3 + 1)
    first = (await sim.http.post("/v1/completions", json={"prompt": prompt})).json()
    again = (await sim.http.post("/v1/completions", json={"prompt": prompt})).json()
    salted = {"prompt": prompt, "cache_salt": "mine"}
    other = (await sim.http.post("/v1/completions", json=salted)).json()
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (first, again, other)]
    assert cached == [0, 48, 0]


# The other routes.


async def test_health_ping_version_and_event_sources_are_served(sim: Running) -> None:
    assert (await sim.http.get("/health")).status_code == 200
    assert (await sim.http.get("/ping")).status_code == 200
    assert (await sim.http.post("/ping")).content == b""
    assert (await sim.http.get("/version")).json()["version"].startswith("0.32")
    assert (await sim.http.get("/kv_event_sources")).json() == []


async def test_a_client_that_disconnects_frees_the_engine() -> None:
    async with running(time_scale=1.0) as sim:
        body = {"prompt": "a", "max_tokens": 50_000}
        for stream in (True, False):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await sim.http.post("/v1/completions", json={**body, "stream": stream})

            async def idle() -> bool:
                return await sim.metric("vllm:num_requests_running") == 0

            await eventually(lambda: sim.endpoint.serving.active == 0)
            await eventually(idle)
        assert await sim.metric("vllm:request_success_total") == 0


async def test_the_metrics_page_counts_what_clients_saw() -> None:
    async with running(served_names=("sim", "auto")) as sim:
        for _ in range(3):
            await sim.http.post("/v1/completions", json={"prompt": "a b c", "max_tokens": 20})
        assert await sim.metric("vllm:request_success_total") == 3
        assert await sim.metric("vllm:prompt_tokens_total") == 3
        assert await sim.metric("vllm:generation_tokens_total") == 60
        assert await sim.metric("vllm:time_to_first_token_seconds_count") == 3
        assert await sim.metric("vllm:inter_token_latency_seconds_count") == 57
        assert await sim.metric("vllm:num_requests_running") == 0
        page = (await sim.http.get("/metrics")).text
    assert 'num_gpu_blocks="' in page
    assert 'block_size="16"' in page
    assert "auto" not in page.replace('cache_dtype="auto"', "")


async def test_a_deadline_is_converted_to_the_clock_of_the_engine() -> None:
    async with running(time_scale=0.5) as sim:
        body = {"prompt": "a", "vllm_xargs": {"ttft_deadline_ms": 30}, "max_tokens": 1}
        jobs = []
        engine = sim.endpoint.serving.driver.engine
        submit = engine.submit
        engine.submit = lambda job: (jobs.append(job), submit(job))[1]  # type: ignore[method-assign]
        await sim.http.post("/v1/completions", json=body)
        assert jobs[0].ttft_objective_s == pytest.approx(0.06)
