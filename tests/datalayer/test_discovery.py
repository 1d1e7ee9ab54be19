"""A look at a running engine, for `laar init`."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from laar.datalayer.discovery import look_at
from laar.datalayer.endpoints_file import Endpoint, endpoint_address
from support import free_port


@pytest.mark.parametrize(
    ("pages", "kind"),
    [
        ({"/metrics": "vllm:num_requests_waiting 1\n"}, "vllm"),
        ({"/metrics": "[]", "/prometheus/metrics": "trtllm_kv_cache_utilization 0\n"},
         "tensorrt-llm"),
        ({"/metrics": "other 1\n"}, ""),
    ],
)  # fmt: skip
async def test_an_engine_is_known_by_its_metrics_page_wherever_that_is(
    pages: dict[str, str], kind: str, serve: Any
) -> None:
    async def engine(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response(
                {"data": [{"id": "m", "root": "/m"}, {"id": "auto", "root": "/m"}]}
            )
        page = pages.get(request.path)
        return web.Response(text=page) if page else web.Response(status=404)

    [found] = await look_at([Endpoint(address=await serve(engine), model="m")])
    assert (found.models, found.kind) == (("m", "auto"), kind)
    assert bool(found.remarks) == (kind == "")


async def test_an_answer_that_is_no_list_of_models_is_named(serve: Any) -> None:
    async def proxy(_request: web.Request) -> web.Response:
        return web.Response(text="<html>welcome</html>", content_type="text/html")

    [found] = await look_at([Endpoint(address=await serve(proxy), model="m")])
    assert found.models == ()
    assert found.remarks[0] == "/v1/models: the answer is no list of models"


@pytest.mark.parametrize(
    "pasted", ["10.0.0.7:8000/v1", "http://10.0.0.7:8000/v1/", "10.0.0.7:8000"]
)
def test_an_engines_address_may_be_its_base_url(pasted: str) -> None:
    assert endpoint_address(pasted) == "10.0.0.7:8000"


@pytest.mark.parametrize(
    ("listed", "several"),
    [
        ([{"id": "llama3.2:latest"}, {"id": "nomic-embed-text:latest"}], True),  # Ollama
        ([{"id": "a", "root": "/a"}, {"id": "b", "root": "/b"}], True),
        ([{"id": "a", "root": "/a"}, {"id": "auto", "root": "/a"}], False),  # vLLM
        ([{"id": "a", "root": "/a"}, {"id": "sql", "parent": "a"}], False),
        ([{"id": "a"}], False),
    ],
)
async def test_a_server_of_several_models_is_named(
    listed: list[dict[str, str]], several: bool, serve: Any
) -> None:
    async def engine(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": listed})
        return web.Response(text="vllm:num_requests_waiting 1\n")

    [found] = await look_at([Endpoint(address=await serve(engine), model="m")])
    assert any("several models" in remark for remark in found.remarks) == several


async def test_an_engine_that_serves_only_its_own_name_gets_the_flag_to_add(serve: Any) -> None:
    async def engine(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "root": "/m"}]})
        return web.Response(text="vllm:num_requests_waiting 1\n")

    [found] = await look_at([Endpoint(address=await serve(engine), model="m")])
    [remark] = found.remarks
    assert "while no picker answers, requests for that get 404" in remark
    assert remark.endswith("--served-model-name m auto")


async def test_of_an_engine_that_does_not_run_only_that_is_said() -> None:
    [found] = await look_at([Endpoint(address=f"127.0.0.1:{free_port()}", model="m")])
    [remark] = found.remarks
    assert remark.startswith("no answer at /v1/models")
