"""Answers of the admin port to foreign pages, clients that guess tokens, and other machines."""

import asyncio
import contextlib
import socket

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from laar.datalayer.endpoints_file import is_loopback
from laar.server.admin.guard import AdminGuard, host_of
from support import eventually, free_port
from support.admin import admin_port

TOKEN = "a-token-of-some-length"
OPEN = ["/metrics", "/healthz", "/readyz"]
PAGES = ["/", "/decisions", "/config", "/fleet", "/models", "/explain", "/outcomes"]
LARGE = 16 << 20
"""Bytes of an answer that does not fit in socket buffers."""
JSON = {"content-type": "application/json"}


def client(*, token=None, others=False, hosts=("admin.svc",), base="http://127.0.0.1:9"):
    async def answer(_request):
        return PlainTextResponse("shown")

    routes = [Route(path, answer, methods=["GET", "POST"]) for path in (*OPEN, *PAGES)]
    guard = AdminGuard(Starlette(routes=routes), token, hosts, others=others)
    return TestClient(guard, base_url=base, follow_redirects=False)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:9090", True),
        ("localhost:9090", True),
        ("LocalHost", True),
        ("10.1.2.3:9090", True),
        ("[::1]:9090", True),
        ("[fd00::1]", True),
        ("Admin.svc:80", True),
        ("evil.example", False),
        ("evil.example:9090", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:9090", False),
        ("0x7f000001", False),
        ("", False),
        ("127.0.0.1:9090@evil.example", False),
    ],
)
def test_a_host_name_controlled_by_a_hostile_page_is_refused(host, allowed):
    for path in PAGES:
        status = client().get(path, headers={"host": host}).status_code
        assert (status == 200) is allowed, (path, status)
        assert status in (200, 403)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:9"}, 200),
        ({"origin": "http://127.0.0.1:3000"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
    ],
)
def test_a_page_of_another_origin_cannot_change_anything(headers, status):
    for content in (b"{}", b""):
        answer = client().post("/outcomes", content=content, headers={**JSON, **headers})
        assert answer.status_code == status


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json"]
)
def test_requests_that_a_page_can_send_without_preflight_are_refused(kind):
    headers = {"content-type": kind} if kind else {}
    assert client().post("/outcomes", content=b"{}", headers=headers).status_code == 415


def test_without_a_token_other_machines_see_only_metrics_and_health():
    there = client(others=True)
    for path in OPEN:
        assert there.get(path).status_code == 200
    for path in ("/", "/decisions", "/explain", "/config"):
        answer = there.get(path)
        assert answer.status_code == 403
        assert "viewers_token_file" in answer.text


@pytest.mark.parametrize(
    ("base", "headers", "secure"),
    [
        ("http://127.0.0.1:9", {}, False),
        ("https://127.0.0.1:9", {}, True),
        ("http://127.0.0.1:9", {"x-forwarded-proto": "https"}, True),
    ],
)
def test_the_cookie_is_sent_only_over_encrypted_connections(base, headers, secure):
    there = client(token=TOKEN, base=base)
    cookie = there.post("/login", data={"token": TOKEN}, headers=headers).headers["set-cookie"]
    assert ("Secure" in cookie) is secure
    assert "HttpOnly" in cookie


@pytest.mark.parametrize(
    ("address", "host", "loopback"),
    [
        ("127.0.0.1:9090", "127.0.0.1", True),
        ("127.9.9.9:1", "127.9.9.9", True),
        ("[::1]:9090", "::1", True),
        ("localhost:9090", "localhost", True),
        ("0.0.0.0:9090", "0.0.0.0", False),
        ("[::]:9090", "::", False),
        ("laar.example:1", "laar.example", False),
    ],
)
def test_loopback_addresses_are_recognized(address, host, loopback):
    assert host_of(address) == host
    assert is_loopback(address) is loopback


@pytest.fixture
async def served(monkeypatch):
    """The address of an admin server with low limits."""
    monkeypatch.setattr("laar.server.admin.server.MAX_CONNECTIONS", 5)
    monkeypatch.setattr("laar.server.admin.server.WAIT_S", 0.3)

    async def who(request):
        return PlainTextResponse(request.client.host)

    async def large(_request):
        return PlainTextResponse("x" * LARGE)

    routes = [Route("/", who), Route("/large", large)]
    async with admin_port(Starlette(routes=routes)) as server:
        yield "127.0.0.1", server.port


async def asked(address, headers=b""):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n%b\r\n" % headers)
    answer = await reader.read()
    writer.close()
    return answer


def ipv6():
    """Return whether this machine has IPv6."""
    try:
        socket.create_server(("::", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return socket.has_dualstack_ipv6()


@pytest.mark.skipif(not ipv6(), reason="no IPv6 here: `[::]` can't be tried")
async def test_a_port_on_all_addresses_accepts_ipv4_and_ipv6():
    async def shown(_request):
        return PlainTextResponse("shown")

    async with admin_port(Starlette(routes=[Route("/", shown)]), "::", free_port()) as server:
        for host in ("127.0.0.1", "::1"):
            assert (await asked((host, server.port))).endswith(b"shown")


async def test_silent_connections_are_closed_and_others_are_served(served, caplog):
    silent = [await asyncio.open_connection(*served) for _ in range(5)]
    for _, writer in silent:
        writer.write(b"GET / HTTP/1.1\r\nhost:")
    with contextlib.suppress(ConnectionError):
        assert await asked(served) == b""  # one connection more than allowed
    for reader, writer in silent:
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
    assert (await asked(served)).startswith(b"HTTP/1.1 200")
    assert not caplog.records


async def test_a_client_that_keeps_many_connections_busy_excludes_no_other(served, monkeypatch):
    monkeypatch.setattr("laar.server.admin.server.MAX_OF_ADDRESS", 3)
    busy = [await asyncio.open_connection(*served) for _ in range(5)]
    for _, writer in busy:
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    first = [await reader.readline() for reader, _ in busy[:3]]
    assert first == [b"HTTP/1.1 200 OK\r\n"] * 3
    reader, writer = await asyncio.open_connection(*served, local_addr=("127.0.0.2", 0))
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b"127.0.0.2")
    for each in (writer, *(writer for _, writer in busy)):
        each.close()


async def test_a_first_request_does_not_keep_a_connection_open_forever(served):
    get, large = b"GET / HTTP/1.1\r\nhost: x\r\n", b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n"
    stalled = []
    for first, then in (
        (get + b"\r\n", b"G"),
        (get + b"\r\n", b"GET / HTTP/1.1\r\nhost:"),
        (get + b"content-length: 99\r\n\r\n", b"a"),
        (large, b""),
        (8 * large, b""),
    ):
        reader, writer = await asyncio.open_connection(*served, limit=1024)
        stalled.append(writer)
        writer.write(first)
        assert (await reader.readline()).startswith(b"HTTP/1.1 ")
        writer.write(then)

    async def is_served():
        with contextlib.suppress(ConnectionError):
            return (await asked(served)).startswith(b"HTTP/1.1 200")
        return False

    await eventually(is_served, what="a free connection")
    for writer in stalled:
        writer.close()


async def test_an_unfinished_login_does_not_hold_a_connection(monkeypatch):
    monkeypatch.setattr("laar.server.admin.guard.BODY_S", 0.3)
    form = b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\ntoken="
    async with admin_port(AdminGuard(Starlette(), TOKEN)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(form)
        async with asyncio.timeout(20):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()
