"""No unusual request, answer or timing makes the picker lose a request, with a real Envoy."""

import asyncio
import threading

import orjson
import pytest
from aiohttp import web
from yarl import URL

from laar.envoy import endpoints_file
from laar.server.extproc import exchange
from support import Answer, eventually
from support.clients import connected, post
from support.served import ServedEngine

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "full-duplex"]
PATH = "/v1/chat/completions"
HEAD = b"POST %s HTTP/1.1\r\nhost: a\r\nconnection: close\r\n" % PATH.encode()


def chat(model="auto", text="hello"):
    return orjson.dumps({"messages": [{"role": "user", "content": text}], "model": model})


async def send_raw(envoy, lines, body):
    """Send header lines that no HTTP client would send; return the whole answer."""
    async with connected(envoy) as (reader, writer), asyncio.timeout(10):
        length = b"content-length: %d\r\n\r\n" % len(body)
        writer.write(HEAD + lines + length + body)
        return await reader.read()


def bodies(upstream):
    return [r.body for r in upstream.requests if r.path == PATH]


@pytest.fixture(params=SHAPES)
async def served(request, gateway):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker()
    return gateway, upstream, await gateway.envoy(request.param)


async def test_a_prompt_nested_too_deeply_to_write_is_left_to_the_engine(served, http):
    _, upstream, envoy = served
    tools = b'[{"function":%s}]' % (b"[" * 300 + b"]" * 300)
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":%s}' % tools
    assert (await post(http, envoy, body))[0] == 200
    assert bodies(upstream) == [body]


async def test_other_requests_are_served_while_a_body_of_many_parts_is_read(gateway, http):
    """A thread reads it. `test_hostile_bodies` bounds how long the thread holds the interpreter."""
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    runner = await gateway.picker()
    envoy = await gateway.envoy("full-duplex")
    message = b'{"role":"user","content":"x"}'
    body = b'{"model":"auto","messages":[%b]}' % b",".join([message] * 400_000)
    calls = []
    read = exchange.try_read

    def aside(api, given):
        calls.append(threading.current_thread() is threading.main_thread())
        return read(api, given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "try_read", aside)
        status, headers, _ = await post(http, envoy, body)
    assert (status, headers["x-laar-model"]) == (200, "m")
    assert calls == [False]
    assert bodies(upstream) == [body.replace(b'"auto"', b'"m"')]
    assert runner.picker.metrics.stream_faults == 0


@pytest.mark.parametrize("shape", SHAPES)
async def test_headers_that_are_not_utf_8_do_not_prevent_a_decision(gateway, shape):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker()
    envoy = await gateway.envoy(shape, fail_open=False)
    names = (b"x-laar-tried-models: m", b"x-request-id: ", b"x-laar-session: ", b"x-any: ")
    for times, (name, byte) in enumerate(
        zip(names, (b"\xff", b"\xfe", b"\xe9", b"\xff"), strict=True), 1
    ):
        answer = await send_raw(envoy, name + byte + b"\r\n", chat())
        assert answer.startswith(b"HTTP/1.1 200"), name
        assert b"x-laar-reason: laar" in answer, name
        assert bodies(upstream) == [chat("m")] * times


@pytest.mark.parametrize("moment", ["before the answer", "within the answer"])
@pytest.mark.parametrize("share_read", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_client_may_disconnect_at_any_moment(gateway, shape, share_read, moment):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker(bodies={"sample_answers": share_read})
    envoy = await gateway.envoy(shape)
    first, rest = asyncio.Event(), asyncio.Event()

    async def answer():
        await first.wait()
        yield b"data: 1\n\n"
        await rest.wait()

    upstream.script(Answer.sse(answer()))
    if moment == "within the answer":
        first.set()
    body = chat("m")
    async with connected(envoy) as (reader, writer), asyncio.timeout(10):
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        if moment == "within the answer":
            await reader.readuntil(b"data: 1")
        else:
            await eventually(lambda: bool(bodies(upstream)), what="the endpoint's turn")
        assert gateway.runner.picker.table.in_flight.sum() == 1
    await eventually(
        lambda: gateway.runner.picker.metrics.streams_open == 0, what="the stream's end"
    )
    assert not gateway.runner.picker.table.in_flight.any()
    first.set()
    rest.set()


@pytest.mark.parametrize("fail_open", [True, False])
async def test_an_answer_longer_than_the_grace_period_outlives_the_picker(gateway, http, fail_open):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker(shutdown={"drain_s": 0.0, "grace_s": 0.2}, bodies={"sample_answers": 0.0})
    envoy = await gateway.envoy(fail_open=fail_open)
    stopped = asyncio.Event()

    async def answer():
        yield b"data: 1\n\n"
        await stopped.wait()
        yield b"data: 2\n\n"

    upstream.script(Answer.sse(answer()))
    async with http.post(envoy.url() + PATH, data=chat("m")) as got:
        assert await got.content.readline() == b"data: 1\n"
        await gateway.stop_picker()
        stopped.set()
        assert await got.content.read() == b"\ndata: 2\n\n"


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_request_is_misrouted_while_envoy_learns_of_a_new_endpoint(gateway, http, shape):
    old, newcomer = await gateway.upstream(), await gateway.upstream()
    gateway.members((old.address, "m"))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    assert (await post(http, envoy, chat("m")))[0] == 200
    gateway.members((old.address, "m"), (newcomer.address, "new"))
    statuses = []

    async def served_by_newcomer():
        statuses.append((await post(http, envoy, chat("new")))[0])
        return bool(bodies(newcomer))

    await eventually(served_by_newcomer, what="the newcomer's first request")
    assert set(statuses[:-1]) <= {404, 503}  # no endpoint serves the model yet, or still
    assert statuses[-1] == 200
    assert len(bodies(old)) == 1


async def test_the_file_for_envoy_is_written_as_soon_as_possible(gateway, http, monkeypatch):
    monkeypatch.setattr(endpoints_file, "WRITE_AGAIN_S", 0.05)
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    gateway.eds.parent.rmdir()
    gateway.eds.parent.write_text("a file where the directory has to be")
    runner = await gateway.picker()
    assert "cannot be written" in runner.picker.problems["eds"]
    gateway.eds.parent.unlink()
    await eventually(gateway.eds.exists, what="the file")
    await eventually(lambda: "eds" not in runner.picker.problems, what="the end of the problem")
    envoy = await gateway.envoy()
    assert (await post(http, envoy, chat("m")))[0] == 200


async def test_behind_any_gateway_no_path_leaves_the_base_path_of_an_engine(gateway, http):
    """Otherwise a client could use the engine's key for everything on its host."""
    upstream = await gateway.upstream()
    (gateway.directory / "key").write_text("engines-key")
    engine = {"address": f"http://{upstream.address}/openai/v1", "models": ["m"], "metrics_url": ""}
    engine["key_file"] = str(gateway.directory / "key")
    gateway.endpoints_file.write_bytes(orjson.dumps({"endpoints": [engine]}))
    await gateway.picker()

    def normalize_nothing(bootstrap):
        (listener,) = [e for e in bootstrap["static_resources"]["listeners"] if e["name"] == "data"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        del manager["normalize_path"], manager["path_with_escaped_slashes_action"]

    envoy = await gateway.envoy("full-duplex", normalize_nothing)
    for path in ("/v1/../../admin", "/v1/%2e%2e/%2E%2e/admin", "/v1/..%2f..%2fadmin", "/..;/admin"):
        async with http.get(URL(envoy.url() + path, encoded=True)) as answer:
            assert answer.status == 403, path
    assert (await post(http, envoy, chat()))[0] == 200
    posts = [r.path for r in upstream.requests if r.method == "POST"]
    assert "/openai/v1/chat/completions" in posts
    assert not [r.path for r in upstream.requests if "admin" in r.path]


class Unupgraded(ServedEngine):
    """Answers as if no WebSocket had been asked for."""

    async def _handle(self, _request):
        return web.json_response({}, headers={"x-laar-exhausted": "forged"})


@pytest.mark.parametrize("shape", ["gateway", "standalone"])
async def test_an_endpoint_that_ignores_an_upgrade_has_answered(gateway, shape):
    engine = await gateway.enter(Unupgraded())
    gateway.members((engine.address, "m"))
    runner = await gateway.picker()
    envoy = await gateway.envoy(shape)
    async with connected(envoy) as (reader, writer), asyncio.timeout(10):
        writer.write(b"GET /v1/models/m HTTP/1.1\r\nhost: a\r\n")
        writer.write(b"upgrade: websocket\r\nconnection: upgrade\r\n\r\n")
        answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"forged" not in answer
    assert runner.picker.metrics.failed_attempts == 0
