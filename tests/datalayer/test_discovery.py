"""Inspecting a running engine for `laar init`."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from laar.datalayer.discovery import look_at
from laar.datalayer.endpoints_file import Endpoint
from laar.fleet.catalog import catalog
from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import EndpointSpec
from support.authority import Authority


@pytest.mark.parametrize(
    ("pages", "kind"),
    [
        ({"/metrics": "vllm:num_requests_waiting 1\n"}, "vllm"),
        ({"/metrics": "[]", "/prometheus/metrics": "trtllm_kv_cache_utilization 0\n"},
         "tensorrt-llm"),
        ({"/metrics": "other 1\n"}, ""),
    ],
)  # fmt: skip
async def test_an_engine_is_recognized_by_its_metrics_page_at_any_path(
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
    assert (tuple(found.served.weights), found.kind) == (("m", "auto"), kind)
    assert bool(found.remarks) == (kind == "")


async def test_a_response_that_is_not_a_model_list_is_reported(serve: Any) -> None:
    async def proxy(_request: web.Request) -> web.Response:
        return web.Response(text="<html>welcome</html>", content_type="text/html")

    [found] = await look_at([Endpoint(address=await serve(proxy), model="m")])
    assert not found.served.weights
    assert found.remarks[0] == "/v1/models: the answer is not a list of models"


@pytest.mark.parametrize(
    ("listed", "several"),
    [
        ([{"id": "llama3.2:latest"}, {"id": "nomic-embed-text:latest"}], True),  # from Ollama
        ([{"id": "a", "root": "/a"}, {"id": "b", "root": "/b"}], True),
        ([{"id": "a", "root": "/a"}, {"id": "auto", "root": "/a"}], False),  # from vLLM
        ([{"id": "a", "root": "/a"}, {"id": "sql", "parent": "a"}], False),
        ([{"id": "a"}], False),
    ],
)
async def test_a_server_with_several_models_is_reported(
    listed: list[dict[str, str]], several: bool, serve: Any
) -> None:
    async def engine(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": listed})
        return web.Response(text="vllm:num_requests_waiting 1\n")

    [found] = await look_at([Endpoint(address=await serve(engine), model="m")])
    assert any("several models" in remark for remark in found.remarks) == several


async def test_an_engine_that_serves_only_its_own_name_gets_the_flag_as_a_remark(
    serve: Any,
) -> None:
    async def engine(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "root": "/m"}]})
        return web.Response(text="vllm:num_requests_waiting 1\n")

    [found] = await look_at([Endpoint(address=await serve(engine), model="m")])
    [remark] = found.remarks
    assert "while no picker answers, requests for `auto` get 404" in remark
    assert remark.endswith("--served-model-name m auto")


async def test_an_untrusted_certificate_leads_to_a_hint_about_its_ca(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority(tmp_path, "private").issue("engine", host="localhost"))
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server:
        [found] = await look_at([Endpoint(address=f"https://localhost:{port}", model="m")])
    [remark] = found.remarks
    assert "--ca-file" in remark


async def _remarks(serve: Any, *answers: tuple[str, web.Response]) -> tuple[Any, str]:
    async def engine(request: web.Request) -> web.Response:
        return dict(answers).get(request.path) or web.Response(status=404)

    [found] = await look_at([Endpoint(address=await serve(engine), model="m")])
    return found, " | ".join(found.remarks)


async def test_vllms_flag_is_suggested_only_for_vllm(serve: Any) -> None:
    listed = web.json_response({"data": [{"id": "llama3.2:latest"}]})
    _, remarks = await _remarks(serve, ("/v1/models", listed))
    assert "it does not serve `auto`" in remarks
    assert "vLLM" not in remarks


async def test_a_redirect_and_an_engine_that_is_loading_are_reported(serve: Any) -> None:
    leads = web.Response(status=301, headers={"location": "https://a.example/"})
    _, remarks = await _remarks(serve, ("/v1/models", leads))
    assert "/v1/models answers 301, a redirect to https://a.example/" in remarks
    _, remarks = await _remarks(serve, ("/v1/models", web.Response(status=503)))
    assert "answers 503; it may still be loading its model" in remarks


async def test_the_picker_itself_is_not_accepted_as_an_engine(serve: Any) -> None:
    table = EndpointTable()
    table.replace("test", [EndpointSpec(address="10.0.0.1:80", models=("m",))])
    body = orjson.dumps(catalog(table))
    found, remarks = await _remarks(serve, ("/v1/models", web.Response(body=body)))
    assert not found.served.weights
    assert "is a laar picker, not an engine" in remarks
