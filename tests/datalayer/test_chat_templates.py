"""Token ids of a chat, as its engine makes them."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from aiohttp import web

from laar.core.membership import EndpointSpec
from laar.datalayer.chat_templates import ask_engine


async def test_an_engine_is_asked_for_its_own_ids(serve: Any) -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, await request.json()))
        return web.json_response({"count": 2, "tokens": [5, 6]})

    spec = EndpointSpec(address=await serve(answer), models=("m",))
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}
    async with aiohttp.ClientSession() as session:
        found = await ask_engine(session, spec, chat, "m")
        assert found.tolist() == [5, 6]
    assert asked == [("/tokenize", {"model": "m", **chat})]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"tokens": "x"}', b'{"tokens": [-1]}', b"{}"])
async def test_an_answer_without_ids_is_a_value_error(serve: Any, body: bytes) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body)

    spec = EndpointSpec(address=await serve(answer), models=("m",))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ValueError, match="/tokenize"):
            await ask_engine(session, spec, {"messages": []}, "m")
