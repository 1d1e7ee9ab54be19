"""Engines are asked for the token ids of chats, from which laar learns their templates."""

from __future__ import annotations

import json
import zlib
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from laar.datalayer import chat_templates
from laar.datalayer.chat_templates import TemplateProbes, ask_engine
from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import EndpointSpec
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.templates import Template


async def test_an_engine_is_asked_for_its_token_ids(serve: Any) -> None:
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


def tokenized(chat: Any, *, tools_first: bool) -> web.Response:
    """Render a chat and give each word an id."""
    texts = [f"{message['role']} {message['content']}" for message in chat["messages"]]
    texts.insert(0 if tools_first else 1, json.dumps(chat["tools"]))
    return web.json_response({"tokens": [zlib.crc32(w.encode()) for w in " ".join(texts).split()]})


async def asked_for_templates(specs: list[EndpointSpec], start: Any) -> dict[str, Template]:
    """Let the collector ask these engines; return the growing list of its results."""
    table = EndpointTable()
    table.replace("test", specs)
    beliefs = PrefixBeliefs(key=b"k" * 16, max_bytes=1 << 20)
    start(TemplateProbes(beliefs, table).run())
    return beliefs.templates


@pytest.mark.parametrize("alike", [True, False])
async def test_a_name_shared_by_models_has_the_most_common_template(
    serve: Any, start: Any, until: Any, alike: bool
) -> None:
    """Different models may share a name such as `auto`."""

    async def answer(request: web.Request) -> web.Response:
        chat = await request.json()
        return tokenized(chat, tools_first=alike or chat["model"] == "b")

    address = await serve(answer)
    other = await serve(answer)
    specs = [
        EndpointSpec(address=address, models=("a", "auto")),
        EndpointSpec(address=other, models=("b", "auto", "only-b")),
    ]
    known = await asked_for_templates(specs, start)
    await until(lambda: len(known) == 4)
    assert [known[name].tools_first for name in ("a", "b", "only-b")] == [alike, True, True]
    assert known["auto"].tools_first is alike


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_an_engine_that_is_not_ready_is_asked_again(
    serve: Any, start: Any, until: Any, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(chat_templates, "PROBE_EVERY_S", 0.01)
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if len(asked) < 3:
            return web.Response(status=status)
        return tokenized(await request.json(), tools_first=False)

    known = await asked_for_templates(
        [EndpointSpec(address=await serve(answer), models=("m",))], start
    )
    await until(lambda: "m" in known)


async def test_identical_ids_for_every_chat_reveal_nothing(
    serve: Any, start: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_templates, "PROBE_EVERY_S", 0.01)
    asked = []

    async def answer(request: web.Request) -> web.Response:
        model = (await request.json())["model"]
        asked.append(model)
        if model == "constant":
            return web.json_response({"tokens": [1]})
        return tokenized(await request.json(), tools_first=False)

    specs = [
        EndpointSpec(address=await serve(answer), models=("constant",)),
        EndpointSpec(address=await serve(answer), models=("m",)),
    ]
    known = await asked_for_templates(specs, start)
    await until(lambda: "m" in known)
    assert known.keys() == {"m"}
    assert asked.count("constant") == 7
