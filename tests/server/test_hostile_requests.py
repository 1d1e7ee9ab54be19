"""Requests and answers that are odd in ways that could break a stream, through a real Envoy."""

import asyncio
from io import BytesIO

import orjson
import pytest

from support import Answer, eventually

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "gateway"]
PATH = "/v1/chat/completions"


def chat(model="auto", text="hello", **fields):
    return orjson.dumps({"messages": [{"role": "user", "content": text}], "model": model, **fields})


async def post(http, url, body, headers=()):
    async with http.post(url + PATH, data=BytesIO(body), headers=headers, timeout=15) as answer:
        return answer.status, answer.headers, await answer.read()


async def raw(envoy_port, request):
    """Sends bytes over a socket of its own; returns what comes back until the end or 5 s."""
    reader, writer = await asyncio.open_connection("127.0.0.1", envoy_port)
    writer.write(request)
    got = b""
    try:
        async with asyncio.timeout(5):
            while piece := await reader.read(65536):
                got += piece
    except TimeoutError:
        pass
    writer.close()
    return got


@pytest.fixture(params=SHAPES)
async def served(request, gateway):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker()
    return gateway, upstream, await gateway.envoy(request.param)


async def test_deep(served, http):
    gateway, upstream, envoy = served
    deep = b"[" * 300 + b"]" * 300
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":%s}' % deep
    status, headers, got = await post(http, envoy.url(), body)
    print(status, headers, got)
    assert status == 200
    assert upstream.requests[-1].body == body or any(r.body == body for r in upstream.requests)


@pytest.mark.parametrize("count", [80, 86, 88, 89, 90, 91, 92, 94])
async def test_repeated(served, http, count):
    gateway, upstream, envoy = served
    body = chat()
    lines = b"".join(b"x-same: %d\r\n" % i for i in range(count))
    got = await raw(
        int(envoy.url().rpartition(":")[2]),
        b"POST %s HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n%s\r\n%s"
        % (PATH.encode(), len(body), lines, body),
    )
    print(got[:300])
    assert got.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("room", [100, 300, 500, 700, 900, 1100])
async def test_long_headers(served, http, room):
    gateway, upstream, envoy = served
    body = chat()
    lines = b"".join(b"x-%d: %s\r\n" % (i, b"v" * (6000)) for i in range(10))
    size = (60 << 10) - room - len(lines)
    lines += b"x-last: %s\r\n" % (b"v" * size)
    got = await raw(
        int(envoy.url().rpartition(":")[2]),
        b"POST %s HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n%s\r\n%s"
        % (PATH.encode(), len(body), lines, body),
    )
    print(got[:300])
    assert got[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 431")


async def test_expect(served, http):
    gateway, upstream, envoy = served
    body = chat(text="x" * 100000)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(envoy.url().rpartition(":")[2]))
    writer.write(
        b"POST %s HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        % (PATH.encode(), len(body)))
    async with asyncio.timeout(5):
        line = await reader.readline()
        assert b"100" in line
        writer.write(body)
        got = await reader.read()
    assert b"HTTP/1.1 200" in got


async def test_bom(served, http):
    gateway, upstream, envoy = served
    status, headers, got = await post(http, envoy.url(), b"\xef\xbb\xbf" + chat())
    assert status == 200, got


@pytest.mark.parametrize("name", ["mod\u00e8le-\u65e5\u672c", "a b", "a,b"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_names(gateway, http, shape, name):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, name))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    status, headers, got = await post(http, envoy.url(), chat())
    print(headers)
    assert status == 200, got


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", " a", "a\x7f"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_bad_names(gateway, http, shape, name):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, name))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    status, headers, got = await post(http, envoy.url(), chat())
    print(status, headers)
    assert status == 200, got
