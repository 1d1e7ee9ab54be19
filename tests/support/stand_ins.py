"""Stand-ins for eight kinds of engine, with the routes, answers and pages that each documents.

Each serves one model, and only what its documentation describes: the paths, cached tokens in usage,
the metrics page. Paths that an engine does not document get 404, as from FastAPI and the servers of
llama.cpp and Ollama.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from support.served import ServedEngine

PROMPT_TOKENS, ANSWER_TOKENS, CACHED_TOKENS = 1234, 7, 1000
"""The usage in a stand-in's answer to every prompt."""

_TEXT = "The answer is four."


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of engine.

    Args:
        name: as on the reference page.
        docs: where its API is documented.
        serves: the paths by the form of their answers (`_FORMS`).
        details: the forms whose usage names cached tokens.
        native: its own API for texts, a body for it and its answer; empty if it has none.
        tokenize: its path that counts tokens, a body for it and its answer; empty if it has none.
        page: the path of its metrics page, and an example page; empty if it has none.
        settings: fields of an endpoint's entry in addition to address and model.
        base: the path in place of `/v1`.
        secure: whether it speaks https and requires a key.
    """

    name: str
    docs: str
    serves: Mapping[str, str]
    details: frozenset[str] = frozenset()
    native: tuple[str, Mapping[str, Any], Mapping[str, Any]] = ("", {}, {})
    tokenize: tuple[str, Mapping[str, Any], Mapping[str, Any]] = ("", {}, {})
    page: tuple[str, str] = ("", "")
    settings: Mapping[str, Any] = field(default_factory=dict)
    base: str = "/v1"
    secure: bool = False


_PATHS = {
    "chat": "/v1/chat/completions",
    "text": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "transcription": "/v1/audio/transcriptions",
    "images": "/v1/images/generations",
}
_NAMED = {"model": "MODEL"}
_COUNTED = {"count": 3, "max_model_len": 4096, "tokens": [5, 6, 7]}


def _serving(*apis: str) -> dict[str, str]:
    return {_PATHS[api]: api for api in apis}


KINDS = (
    Kind(
        name="vLLM",
        docs="https://docs.vllm.ai/en/latest/serving/openai_compatible_server/",
        serves=_serving(
            "chat", "text", "responses", "messages", "embeddings", "rerank", "transcription"
        ),
        details=frozenset({"chat", "text", "responses"}),
        native=(
            "/inference/v1/generate",
            {**_NAMED, "token_ids": "IDS", "sampling_params": {"max_tokens": 8}},
            {
                "request_id": "1",
                "choices": [{"index": 0, "token_ids": [5, 6, 7], "finish_reason": "stop"}],
            },
        ),
        tokenize=("/tokenize", {**_NAMED, "prompt": "PROMPT"}, _COUNTED),
        page=(
            "/metrics",
            "vllm:num_requests_waiting 2\nvllm:num_requests_running 3\n"
            "vllm:kv_cache_usage_perc 0.25\n",
        ),
    ),
    Kind(
        name="SGLang",
        docs="https://docs.sglang.io/basic_usage/openai_api.html",
        serves=_serving(
            "chat",
            "text",
            "responses",
            "messages",
            "embeddings",
            "rerank",
            "transcription",
            "images",
        ),
        details=frozenset({"chat", "text", "responses"}),
        native=(
            "/generate",
            {"text": "PROMPT", "sampling_params": {"max_new_tokens": 8}},
            {"text": _TEXT, "meta_info": {"prompt_tokens": PROMPT_TOKENS}},
        ),
        tokenize=("/tokenize", {**_NAMED, "prompt": "PROMPT"}, _COUNTED),
        page=(
            "/metrics",
            "sglang:num_queue_reqs 2\nsglang:num_running_reqs 3\nsglang:token_usage 0.25\n",
        ),
        settings={"engine": "sglang"},
    ),
    Kind(
        name="TensorRT-LLM",
        docs="https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html",
        serves=_serving("chat", "text", "responses", "images"),
        details=frozenset({"chat", "text", "responses"}),
        page=(
            "/prometheus/metrics",
            "trtllm_num_requests_waiting 2\ntrtllm_num_requests_running 3\n"
            "trtllm_kv_cache_utilization 0.25\n",
        ),
        settings={"engine": "tensorrt-llm"},
    ),
    Kind(
        name="llama.cpp",
        docs="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        serves=_serving("chat", "text", "responses", "messages", "embeddings", "rerank"),
        details=frozenset({"chat", "text", "responses", "messages"}),
        native=(
            "/completion",
            {"prompt": "PROMPT", "n_predict": 8},
            {"content": _TEXT, "stop": True, "tokens_evaluated": PROMPT_TOKENS},
        ),
        tokenize=("/tokenize", {"content": "PROMPT"}, {"tokens": [5, 6, 7]}),
        page=("/metrics", "llamacpp:requests_deferred 2\nllamacpp:requests_processing 3\n"),
        settings={"engine": "llama.cpp"},
    ),
    Kind(
        name="Ollama",
        docs="https://docs.ollama.com/api/openai-compatibility",
        serves=_serving(
            "chat", "text", "responses", "messages", "embeddings", "transcription", "images"
        ),
        native=(
            "/api/chat",
            {**_NAMED, "messages": [{"role": "user", "content": "PROMPT"}], "stream": False},
            {
                "message": {"role": "assistant", "content": _TEXT},
                "done": True,
                "prompt_eval_count": PROMPT_TOKENS,
                "eval_count": ANSWER_TOKENS,
            },
        ),
        settings={"metrics_url": ""},
    ),
    Kind(
        name="TGI",
        docs="https://huggingface.co/docs/text-generation-inference/reference/api_reference",
        serves=_serving("chat", "text"),
        native=(
            "/generate",
            {"inputs": "PROMPT", "parameters": {"max_new_tokens": 8}},
            {"generated_text": _TEXT},
        ),
        tokenize=("/tokenize", {"inputs": "PROMPT"}, {"tokens": [{"id": 5, "text": "four"}]}),
        page=("/metrics", "tgi_queue_size 2\ntgi_batch_current_size 3\n"),
        settings={"engine": "tgi"},
    ),
    Kind(
        name="LMDeploy",
        docs="https://lmdeploy.readthedocs.io/en/latest/llm/api_server.html",
        serves=_serving("chat", "text", "responses", "messages"),
        details=frozenset({"chat", "text"}),
        native=(
            "/generate",
            {"prompt": "PROMPT", "max_tokens": 8},
            {"text": _TEXT, "meta_info": {"prompt_tokens": PROMPT_TOKENS}},
        ),
        tokenize=("/v1/encode", {"input": "PROMPT"}, {"input_ids": [5, 6, 7], "length": 3}),
        page=(
            "/metrics",
            "lmdeploy:num_requests_waiting 2\nlmdeploy:num_requests_running 3\n"
            "lmdeploy:gpu_cache_usage_perc 0.25\n",
        ),
        settings={"engine": "lmdeploy"},
    ),
    Kind(
        name="hosted",
        docs="https://platform.openai.com/docs/api-reference",
        serves=_serving("chat", "text", "responses", "embeddings", "transcription", "images"),
        details=frozenset({"chat", "text", "responses"}),
        settings={"metrics_url": ""},
        base="/openai/v1",
        secure=True,
    ),
)
"""`hosted` is any service with OpenAI's API behind https, a base path and a key."""


class StandIn(ServedEngine):
    """One engine of a kind, for the duration of an ``async with`` block; it records its requests.

    Args:
        kind: its kind.
        model: the name of its model.
        pair: its certificate and key, if it speaks https.
        key: the key that it requires.
    """

    def __init__(
        self, kind: Kind, model: str, *, pair: tuple[Path, Path] | None = None, key: str = ""
    ) -> None:
        self.kind, self.model, self.key = kind, model, key
        self.pair = pair
        self.asked: list[str] = []
        """The paths requested by clients, in order of arrival."""
        self.keys: set[str | None] = set()
        """The `authorization` of all requests, except probes."""

    def expected(self, path: str) -> str:
        """Return its own path for a client's path."""
        return f"{self.kind.base}{path[3:]}" if path.startswith("/v1/") else path

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        agent = request.headers.get("user-agent", "")
        if agent != "laar-probe":
            self.keys.add(request.headers.get("authorization"))
        if request.method == "POST" and not agent.startswith("laar-"):
            self.asked.append(request.path)
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "bad key"}}, status=401)
        root = self.kind.base.removesuffix("/v1")
        path = request.path
        if path == f"{self.kind.base}/models":
            return web.json_response({"object": "list", "data": [{"id": self.model}]})
        if self.kind.page[0] and path == f"{root}{self.kind.page[0]}":
            return web.Response(text=self.kind.page[1])
        if path == f"{root}/health" and self.kind.name not in ("Ollama", "hosted"):
            return web.Response()
        for own, _, its in (self.kind.native, self.kind.tokenize):
            if own and path == own and request.method == "POST":
                return web.json_response(its)
        served = {self.expected(each): form for each, form in self.kind.serves.items()}
        if path not in served:
            return web.json_response({"detail": "Not Found"}, status=404)
        form = served[path]
        asked = json.loads(body) if form != "transcription" else {}
        if form in ("chat", "text") and asked.get("stream"):
            return await self._stream(request, form, asked)
        return web.json_response(_answer(form, self.model, cached=form in self.kind.details))

    async def _stream(
        self, request: web.Request, form: str, asked: Mapping[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        whole = _answer(form, self.model, cached=form in self.kind.details)
        usage = whole.pop("usage")
        for choice in whole["choices"]:
            choice["delta"] = choice.pop("message", {})
        events = [whole]
        if asked.get("stream_options", {}).get("include_usage"):
            events.append({"model": self.model, "choices": [], "usage": usage})
        for event in events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _answer(form: str, model: str, *, cached: bool) -> dict[str, Any]:
    """Return an answer of a form, with its usage."""
    openai: dict[str, Any] = {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": ANSWER_TOKENS,
        "total_tokens": PROMPT_TOKENS + ANSWER_TOKENS,
    }
    if cached:
        openai["prompt_tokens_details"] = {"cached_tokens": CACHED_TOKENS}
    other: dict[str, Any] = {"input_tokens": PROMPT_TOKENS, "output_tokens": ANSWER_TOKENS}
    only_prompt = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
    match form:
        case "chat":
            message = {"role": "assistant", "content": _TEXT}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return {"object": "chat.completion", "model": model, "choices": [choice],
                    "usage": openai}  # fmt: skip
        case "text":
            choice = {"index": 0, "text": _TEXT, "finish_reason": "stop"}
            return {"object": "text_completion", "model": model, "choices": [choice],
                    "usage": openai}  # fmt: skip
        case "responses":
            if cached:
                other["input_tokens_details"] = {"cached_tokens": CACHED_TOKENS}
            parts = [{"type": "output_text", "text": _TEXT}]
            output = [{"type": "message", "role": "assistant", "content": parts}]
            return {"object": "response", "id": "resp_1", "status": "completed", "model": model,
                    "output": output, "usage": other}  # fmt: skip
        case "messages":
            if cached:  # tokens read from a cache are not in `input_tokens`
                other["input_tokens"] = PROMPT_TOKENS - CACHED_TOKENS
                other["cache_read_input_tokens"] = CACHED_TOKENS
            return {"type": "message", "role": "assistant", "model": model, "usage": other,
                    "content": [{"type": "text", "text": _TEXT}],
                    "stop_reason": "end_turn"}  # fmt: skip
        case "embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.5]}]
            return {"object": "list", "model": model, "data": data, "usage": only_prompt}
        case "rerank":
            return {"model": model, "results": [{"index": 0, "relevance_score": 0.9}],
                    "usage": only_prompt}  # fmt: skip
        case "transcription":
            return {"text": _TEXT}
        case "images":
            return {"created": 1, "data": [{"b64_json": "aGk="}]}
    raise ValueError(form)
