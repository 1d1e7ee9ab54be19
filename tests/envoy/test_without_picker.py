"""Without a picker, requests stay with the endpoints that accept their model."""

from __future__ import annotations

import gzip
import json
import random
from io import BytesIO
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from laar.fleet.membership import ROLE_LABEL, EndpointSpec
from support import eventually

pytestmark = pytest.mark.envoy

SHAPES = ["sidecar", "standalone", "gateway"]
ENGINES = (
    ("granite-8b", "both"),
    ("Qwen/Qwen3-8B", "both"),
    ("llama3:8b@q4", "adapter+1", "both"),
    ("modèle ü 模型", "a b&c=d?e#f%2F", "both"),
)
CHAT = "/v1/chat/completions"
JSON = "application/json"


async def chunks(*parts: bytes):
    for part in parts:
        yield part


def in_body(name):
    return CHAT, {"data": BytesIO(json.dumps({"n": [[[1]]], "model": name}).encode())}


def in_chunks(name):
    body = json.dumps({"messages": [], "model": name}, ensure_ascii=False).encode()
    return CHAT, {"data": chunks(body[:9], body[9:])}


def in_odd_body(name):
    body = json.dumps({"model": "?", "a": {"model": "?"}, "\nmodel": "?"})[:-1]
    return "/pooling", {"data": BytesIO(f'{body} , "m\\u006fdel"\t:{json.dumps(name)}}}'.encode())}


def in_path(name):
    return f"/openai/deployments/{quote(name, '')}/chat/completions?api-version=1", {"data": b"{}"}


def in_path_not_body(name):
    path = f"/openai/deployments/{quote(name, '/:@!$&+,;=')}/audio/speech"
    return path, {"data": BytesIO(json.dumps({"model": "granite-8b"}).encode())}


def in_description(name):
    return f"/v1/models/{quote(name, '')}", {}


def in_old_path(name):
    form = aiohttp.FormData({"model": "granite-8b", "file": BytesIO(b"x" * 100_000)})
    return f"/v1/engines/{quote(name)}/completions", {"data": form}


NAMED = [in_body, in_chunks, in_odd_body, in_path, in_path_not_body, in_description, in_old_path]


async def ask(http, envoy, request, content_type=JSON):
    """Return an answer's status and headers."""
    path, options = request
    kind = {"content-type": content_type} if isinstance(options.get("data"), BytesIO) else {}
    method = "POST" if "data" in options else "GET"
    async with http.request(
        method, URL(envoy.url() + path, encoded=True), headers=kind, **options
    ) as answer:
        await answer.read()
        return answer


async def a_fleet(fleet, shape, engines):
    """Start an engine for each tuple of names, and an Envoy without a picker."""
    upstreams = await fleet.upstreams(len(engines))
    pairs = list(zip(upstreams, engines, strict=True))
    fleet.specs(*(EndpointSpec(address=u.address, models=names) for u, names in pairs))
    return await fleet.envoy(shape), {u.address: names for u, names in pairs}


@pytest.mark.parametrize("shape", SHAPES)
async def test_requests_go_to_endpoints_with_their_model(fleet, http, shape):
    envoy, served = await a_fleet(fleet, shape, ENGINES)
    for form in NAMED:
        for name in {name for names in ENGINES for name in names}:
            for _ in range(4 if name == "both" else 2):
                answer = await ask(http, envoy, form(name))
                assert (answer.status, form.__name__, name) == (200, form.__name__, name)
                assert name in served[answer.headers["x-upstream"]]
    assert (await ask(http, envoy, ("/health?x=1", {}))).status == 200
    used = {(await ask(http, envoy, in_body("both"))).headers["x-upstream"] for _ in range(40)}
    assert used == served.keys(), "a name that several accept is spread"


def body(content, path=CHAT, content_type=JSON):
    return (path, {"data": BytesIO(content)}), content_type


UNKNOWABLE = {
    "a name that no endpoint accepts": body(b'{"model": "auto"}'),
    "no name": body(b'{"prompt": "p"}'),
    "an empty name": body(b'{"model": ""}'),
    "no text as name": body(b'{"model": ["granite-8b"]}'),
    "a list": body(b'[{"model": "granite-8b"}]'),
    "not JSON": body(b'{"model": "granite-8b"'),
    "an endless nest": body(b'{"model": "granite-8b", "a": ' + b"[" * 1_000_000),
    "compressed": body(gzip.compress(b'{"model": "granite-8b"}')),
    "too long to be read": body(b'{"model": "granite-8b"}' + b" " * 2_000_000),
    "a form": ((("/v1/audio/transcriptions"), {"data": {"model": "granite-8b"}}), ""),
    "a list of all models": (("/v1/models", {}), ""),
    "a stored answer": (("/v1/responses/resp_1", {}), ""),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_requests_whose_model_envoy_cannot_know_get_503(fleet, http, shape):
    envoy, served = await a_fleet(fleet, shape, ENGINES)
    for what, (request, content_type) in UNKNOWABLE.items():
        for _ in range(2):
            answer = await ask(http, envoy, request, content_type)
            assert (answer.status, what) == (503, what)
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["x-laar-reason"] == "no-picker"
    fleet.specs(*(EndpointSpec(address=at, models=("one", "two")) for at in served))

    async def passes():
        return (await ask(http, envoy, in_body("auto"))).status == 200

    await eventually(passes, what="the new names")
    for what, (request, content_type) in UNKNOWABLE.items():
        answer = await ask(http, envoy, request, content_type)
        assert (answer.status, what) == (200, what), "all endpoints accept the same names"


@pytest.mark.parametrize("shape", SHAPES)
async def test_bodies_arrive_byte_for_byte(fleet, http, shape):
    """Envoy decides within the last piece of a body, which it once lost over HTTP/2."""
    (engine,) = await fleet.upstreams(1)
    fleet.specs(EndpointSpec(address=engine.address, models=("m",)))
    envoy = await fleet.envoy(shape)
    for size in (1, 16_384, 99_999, 150_000, 999_983, 2_000_001):
        content = random.Random(size).randbytes(size)
        for path in (CHAT, "/generate"):
            for data in (BytesIO(content), chunks(content[: size // 3], content[size // 3 :])):
                answer = await ask(http, envoy, (path, {"data": data}))
                assert (answer.status, engine.asked[-1].body == content) == (200, True), size


async def test_endpoints_that_work_for_others_get_no_requests(fleet, http):
    """They prefill or encode for other endpoints, and list the same model."""
    one, other = await fleet.upstreams(2)
    prefill = EndpointSpec(address=one.address, models=("m", "x"), labels={ROLE_LABEL: "prefill"})
    fleet.specs(prefill, EndpointSpec(address=other.address, models=("m",)))
    envoy = await fleet.envoy("standalone")
    for name in ("m", "any") * 10:
        assert (await ask(http, envoy, in_body(name))).headers["x-upstream"] == other.address


async def test_a_websocket_goes_to_an_endpoint_with_its_model(fleet, http):
    envoy, served = await a_fleet(fleet, "standalone", ENGINES)
    for name in ("granite-8b", "Qwen/Qwen3-8B") * 4:
        url = f"{envoy.url()}/v1/realtime?intent=x&model={quote(name, '')}"
        async with http.ws_connect(URL(url, encoded=True)) as socket:
            await socket.send_str("hello")
            assert await socket.receive_str(timeout=10) == "hello"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await http.ws_connect(f"{envoy.url()}/v1/realtime")
    assert refused.value.status == 503
    assert served


@pytest.mark.parametrize("shape", SHAPES)
async def test_envoy_reads_no_body_while_a_picker_decides(fleet, http, shape):
    """Nor do a client's headers make it read one, or choose an endpoint."""
    upstreams = await fleet.picked(2)
    envoy = await fleet.envoy(shape)
    forged = {"x-gateway-destination-endpoint": upstreams[0].address, "model": "m"}

    async def parsed():
        """Return how many bodies Envoy has looked at."""
        async with http.get(f"{envoy.admin_url}/stats?filter=json_to_metadata") as response:
            return sum(int(line.split()[-1]) for line in (await response.text()).splitlines())

    for form in (in_body, in_chunks, in_path, in_description):
        assert (await ask(http, envoy, form("m"))).headers["x-upstream"] == upstreams[1].address
    assert await parsed() == 0
    async with http.post(envoy.url() + CHAT, data=b"{}", headers=forged) as answer:
        assert answer.headers["x-upstream"] == upstreams[1].address
    assert await parsed() == 0
