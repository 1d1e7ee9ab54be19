"""Context windows, as engines state them in their own words and places."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import orjson
import pytest
from aiohttp import web

from laar.datalayer.served_names import ServedNames, read_served
from laar.fleet.membership import EndpointSpec
from support import eventually
from support.directors import table_of

W, MORE = 8192, 131_072

LISTS: dict[str, dict[str, Any]] = {
    "vllm": {"max_model_len": W},
    "llama.cpp": {"meta": {"n_vocab": 32_000, "n_ctx": W, "n_ctx_train": MORE, "n_embd": 4096}},
    "lm studio": {"loaded_context_length": W, "max_context_length": MORE},
    "openrouter": {
        "context_length": W,
        "top_provider": {"context_length": W, "max_completion_tokens": 900},
    },
    "mistral": {"max_context_length": W},
    "groq": {"context_window": W, "max_completion_tokens": 700},
    "lmdeploy": {"session_len": W},
    "gemini": {"inputTokenLimit": W, "outputTokenLimit": 600},
}
"""Members of an entry of a list."""

PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "tgi": (
        "/info",
        {"model_id": "m", "max_total_tokens": W, "max_input_tokens": 4096}
        | {"max_batch_total_tokens": 90_000, "max_concurrent_requests": 128},
    ),
    "ollama": ("/api/ps", {"models": [{"name": "m:latest", "size": 9000, "context_length": W}]}),
    "lm studio": ("/api/v0/models", {"data": [{"id": "m", **LISTS["lm studio"]}]}),
    "llama.cpp": ("/props", {"default_generation_settings": {"n_ctx": W, "n_predict": 77}}),
}
"""Pages of engines whose lists state no window, or only what the model could have."""


def window_of(entries: list[dict[str, Any]], *models: str) -> list[float]:
    """Return the windows of names at an endpoint whose first model is the first."""
    table = table_of(EndpointSpec(address="a:1", models=models[:1]))
    table.served({"a:1": read_served(orjson.dumps({"object": "list", "data": entries}))})
    return [table.windows(table.active, name).item() for name in models]


@pytest.mark.parametrize("form", LISTS)
def test_a_name_has_its_own_window_whatever_else_is_listed(form: str) -> None:
    own = {"id": "m", "root": "r", **LISTS[form]}
    lora = {"id": "lora", "root": "l", "parent": "m"}
    other, plain = {"id": "bge", "root": "x", "max_model_len": 512}, {"id": "z", "root": "y"}
    for around in itertools.permutations([own, lora, other, plain]):
        assert window_of(list(around), "m", "lora") == [W, W]


def test_numbers_that_are_no_windows_are_not_taken_for_one() -> None:
    for member in ("max_tokens", "created", "max_output_tokens", "max_batch_total_tokens", "size"):
        assert window_of([{"id": "m", member: 900}], "m") == [float("inf")]
    for value in (None, True, -1, 1e9, "8192", 1 << 50):
        assert window_of([{"id": "m", "max_model_len": value}], "m") == [float("inf")]


def test_names_of_one_endpoint_may_have_different_windows() -> None:
    entries = [{"id": name, "root": "r", "max_model_len": n} for name, n in (("m", W), ("s", 512))]
    assert window_of(entries, "m", "s") == [W, 512]


@pytest.mark.parametrize(
    "form", [*(("/v1/models", name) for name in LISTS), *(("page", name) for name in PAGES)]
)
async def test_the_window_of_an_engine_is_read_where_it_states_it(
    form: tuple[str, str], recorder: Any, start: Any, serve: Any, figure: Any
) -> None:
    where, name = form
    path, page = PAGES.get(name, ("", {})) if where == "page" else ("", {})
    entry = {"id": "m", **(LISTS[name] if where != "page" else {"meta": {"n_ctx_train": MORE}})}

    async def engine(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [entry, {"id": "bge", "max_model_len": 512}]})
        if request.path == path:
            return web.json_response(page)
        return web.Response(status=404)

    spec = EndpointSpec(address=await serve(engine), models=("m",))
    looks = ServedNames(lambda: [spec], recorder, clock=time.monotonic, rng=random.Random(1))
    start(looks.run())
    await eventually(lambda: bool(recorder.names), what="the names")
    window = recorder.names[-1][1].window("m")
    figure(f"window of {name}, by {path or where}", window, f"{W}")
    assert window == W
