"""A look at a running engine, for `laar init`."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from laar.datalayer.discovery import look_at


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
            return web.json_response({"data": [{"id": "m"}]})
        page = pages.get(request.path)
        return web.Response(text=page) if page else web.Response(status=404)

    [found] = await look_at([await serve(engine)])
    assert (found.models, found.kind) == (("m",), kind)
    assert bool(found.remarks) == (kind == "")
