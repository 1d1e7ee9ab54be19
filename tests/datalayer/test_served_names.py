"""The names that an engine reports, and whether it generates text."""

from __future__ import annotations

import random
import time
from typing import Any

import orjson
import pytest
from aiohttp import web

from laar.datalayer import served_names
from laar.datalayer.served_names import MAX_NAMES, ServedNames, read_served
from laar.fleet.membership import EndpointSpec, Served

BASE = {"id": "m", "root": "org/m", "parent": None}
LORA = {"id": "lora", "root": "/loras/one", "parent": "m"}


def names(sink: Any, address: str, **options: Any) -> ServedNames:
    specs = [EndpointSpec(address=address, models=("m",))]
    options = {"interval_s": 0.02, **options}
    return ServedNames(lambda: specs, sink, clock=time.monotonic, rng=random.Random(1), **options)


async def test_adapters_are_noticed_as_they_come_and_go(
    recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    loaded = [BASE]

    async def engine(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": loaded})
        return web.Response(status=405)

    address = await serve(engine)
    start(names(recorder, address).run())
    for adapters in ({}, {"lora": "m"}, {}):
        loaded[1:] = [LORA] * len(adapters)
        wanted = address, Served(weights={"m": "org/m"}, adapters=adapters, generates=True)
        await until(lambda: recorder.names and recorder.names[-1] == wanted)  # noqa: B023
    assert recorder.past_problems == []


def engine(routes: set[str]) -> Any:
    async def answer(request: web.Request) -> web.Response:
        assert request.method == "GET"
        if request.path == "/v1/models":
            return web.json_response({"data": [BASE]})
        return web.Response(status=405 if request.path in routes else 404)

    return answer


@pytest.mark.parametrize(
    ("routes", "generates"),
    [
        ({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}, True),
        ({"/v1/completions", "/v1/embeddings"}, True),
        ({"/v1/embeddings", "/pooling"}, False),
        ({"/pooling", "/classify", "/v1/rerank"}, False),  # a reranker
        ({"/v1/audio/transcriptions"}, False),
        ({"/v1/audio/transcriptions", "/v1/chat/completions"}, True),
        (set(), True),  # every GET gets a 404, which shows nothing
    ],
)
async def test_routes_show_whether_an_engine_generates_text(
    routes: set[str], generates: bool, recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    start(names(recorder, await serve(engine(routes))).run())
    await until(lambda: recorder.names)
    assert recorder.names[0][1].generates is generates


async def test_engines_that_may_have_a_route_are_found(
    recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    chat, speech = "/v1/chat/completions", "/v1/audio/transcriptions"
    writes, hears, unclear = [
        await serve(engine(routes)) for routes in ({chat}, {speech}, set[str]())
    ]
    models = {writes: ("m",), hears: ("whisper",), unclear: ("m",)}
    specs = [EndpointSpec(address=at, models=named) for at, named in models.items()]
    listed = ServedNames(lambda: specs, recorder, clock=time.monotonic, rng=random.Random(1))
    assert listed.with_route(chat) is None  # nothing is known yet
    start(listed.run())
    await until(lambda: len({address for address, _ in recorder.names}) == 3)
    assert listed.with_route(chat) == {writes, unclear}
    assert listed.with_route(speech) == {hears, unclear}
    assert listed.with_route(chat, ["m", "n"]) is None  # all endpoints of an alias's models may
    assert listed.with_route(speech, ["m"]) == {unclear}, "others do not serve the alias's models"
    del specs[2]
    assert listed.with_route("/classify") is None  # no engine has it: let one say so


@pytest.mark.parametrize(
    ("weights", "away"),
    [
        (BASE, "no answer"),
        (BASE, "503"),
        ({"id": "m", "root": "org/other"}, ""),
    ],
)
async def test_a_new_engine_at_an_address_is_checked_for_its_routes(
    weights: dict[str, Any], away: str, recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    engine = {"models": BASE, "routes": {"/v1/embeddings"}, "away": False}
    missed = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal missed
        if engine["away"]:
            missed += 1
            if away == "503":
                return web.Response(status=503)
            assert request.transport is not None
            request.transport.close()
        if request.path == "/v1/models":
            return web.json_response({"data": [engine["models"]]})
        return web.Response(status=405 if request.path in engine["routes"] else 404)

    start(names(recorder, await serve(answer)).run())
    await until(lambda: recorder.names)
    assert recorder.names[0][1].generates is False
    if away:
        engine["away"] = True
        await until(lambda: missed > 1)
    engine.update(models=weights, routes={"/v1/chat/completions"}, away=False)
    await until(lambda: recorder.names[-1][1].generates)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data":{}}', b'{"data":7}', b"\xff", b"null"])
async def test_a_response_that_is_not_a_list_is_reported_and_changes_nothing(
    body: bytes, recorder: Any, start: Any, until: Any, serve: Any
) -> None:
    async def engine(_: web.Request) -> web.Response:
        return web.Response(body=body)

    start(names(recorder, await serve(engine)).run())
    await until(lambda: recorder.past_problems)
    assert "not a list of models" in recorder.past_problems[0]
    assert recorder.names == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (web.Response(status=401), "answers 401"),
        (web.Response(text="hello"), "is not a list of models"),
        (web.json_response({"data": [LORA]}), "lists no model"),
        (None, "does not answer"),
    ],
)
async def test_a_pod_without_a_known_model_is_polled_every_second(
    answer: web.Response | None,
    reason: str,
    recorder: Any,
    start: Any,
    until: Any,
    serve: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_names, "NAMELESS_INTERVAL_S", 0.02)
    listed: list[dict[str, Any]] = []

    async def engine(request: web.Request) -> web.Response:
        if request.path != "/v1/models":
            return web.Response(status=405)
        if listed:
            return web.json_response({"data": listed})
        if answer is None:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return web.Response(status=answer.status, body=answer.body)

    address = await serve(engine)
    spec = EndpointSpec(address=address, models=(), labels={"laar.dev/pod": "ml/a-rank-0"})
    looks = ServedNames(
        lambda: [spec], recorder, clock=time.monotonic, rng=random.Random(1), interval_s=3600
    )
    start(looks.run())
    source = f"models {address}"
    await until(lambda: len(recorder.names) > 2)
    assert recorder.names[0] == (address, Served())
    assert "ml/a-rank-0 names no model" in recorder.problems[source]
    assert f"{reason}" in recorder.problems[source]
    listed.append(BASE)
    await until(lambda: recorder.names[-1][1].weights == {"m": "org/m"})
    assert source not in recorder.problems


def test_invalid_entries_are_skipped_and_long_lists_truncated() -> None:
    entries = [7, {}, {"id": 1}, {"id": "a,b"}, {"id": "x", "parent": 3}, BASE, LORA]
    two = LORA | {"id": "two", "owned_by": "sglang"}
    entries += [two, two | {"parent": "a,b"}, two | {"parent": "m" * 10_000}]
    served = read_served(orjson.dumps({"data": entries}))
    assert served == Served(weights={"m": "org/m"}, adapters={"lora": "m", "m:two": "m"})
    many = [{"id": f"m{i}", "root": "r"} for i in range(MAX_NAMES + 9)]
    assert len(read_served(orjson.dumps({"data": many})).weights) == MAX_NAMES
