"""Requests of visits: the short way, for IP addresses, beside aiohttp's session for all others."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler

from laar.datalayer import fetching
from laar.datalayer.fetching import Fetcher

SHORT, USUAL = "127.0.0.1", "localhost"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
MAX_BYTES = 300_000


class Server:
    """Answers each request with the next of `answers`, the last again and again.

    An answer of several parts is sent with pauses; one that ends in None is followed by a close.
    """

    def __init__(self, *answers: list[bytes | None]) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                self.requests.append(request)
                for part in self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]:
                    if part is None:
                        return
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.002)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[str]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listener:
        yield str(listener.sockets[0].getsockname()[1])


def fetcher() -> Fetcher:
    return Fetcher({"accept": "x/y"}, clock=time.monotonic)


async def fetched(it: Fetcher, url: str, *, within_s: float = 0.3) -> object:
    """Status and body, or the name of the error."""
    try:
        async with asyncio.timeout(within_s), it.get(url) as answer:
            assert 0.0 <= answer.after_s < within_s
            body = await answer.read(MAX_BYTES)
            return answer.status, body if len(body) <= MAX_BYTES else "too long"
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        wrong = isinstance(error, aiohttp.ClientResponseError) or type(error) is aiohttp.ClientError
        return "not HTTP" if wrong else type(error).__name__


def chunked(*parts: bytes) -> list[bytes | None]:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%b\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]


ANSWERS: dict[str, list[bytes | None]] = {
    "whole": [OK],
    "in pieces": [OK[i : i + 1] for i in range(len(OK))],
    "empty": [b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"],
    "no content": [b"HTTP/1.1 204 No Content\r\n\r\n"],
    "chunked": chunked(b"a" * 5000, b"b", b"c" * 100_000),
    "until the end": [b"HTTP/1.1 200 OK\r\n\r\nall ", b"of it", None],
    "said to close": [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"],
    "HTTP/1.0": [b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", None],
    "compressed, unasked": [OK.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")],
    "moved": [b"HTTP/1.1 302 Found\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n"],
    "an early hint first": [b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", OK],
    "continue first": [b"HTTP/1.1 100 Continue\r\n\r\n" + OK],
    "another protocol": [
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nxx"
    ],
    "two at once": [OK + OK],
    "too long": [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 65536] * 40],
    "cut off": [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", None],
    "cut off in a chunk": [*chunked(b"ok")[:-1], None],
    "cut off in the head": [b"HTTP/1.1 200 OK\r\ncontent-le", None],
    "nothing": [None],
    "silence": [],
    "silence in the body": [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"],
    "no HTTP": [b"\x15\x03\x01\x00\x02\x02\x16", None],
    "bad length": [b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nok"],
    "two lengths": [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok"],
    "bad chunk": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nok\r\n"],
    "endless header": [b"HTTP/1.1 200 OK\r\nx: ", *[b"y" * 65536] * 20],
    "endless headers": [b"HTTP/1.1 200 OK\r\n", *[b"x: y\r\n" * 10_000] * 20],
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_both_ways_read_the_same(name: str) -> None:
    """Thrice each: what is read, how often it is asked for, and on how many connections."""
    seen = []
    for host in (SHORT, USUAL):
        server = Server(ANSWERS[name])
        async with (
            listening(server) as port,
            fetcher() as it,
        ):
            url = f"http://{host}:{port}/metrics"
            read = [await fetched(it, url) for _ in range(3)]
            seen.append((read, len(server.requests), server.connections))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("seed", range(20))
async def test_both_ways_read_the_same_by_turns(seed: int) -> None:
    names = [name for name in ANSWERS if "silence" not in name]
    chosen = [ANSWERS[name] for name in random.Random(seed).choices(names, k=20)]
    seen = []
    for host in (SHORT, USUAL):
        server = Server(*chosen, [OK])
        async with listening(server) as port, fetcher() as it:
            url = f"http://{host}:{port}/metrics"
            seen.append([await fetched(it, url, within_s=20.0) for _ in range(20)])
    assert seen[0] == seen[1]


async def test_both_ways_send_the_same() -> None:
    sent = []
    for host in (SHORT, USUAL):
        server = Server([OK])
        async with (
            listening(server) as port,
            fetcher() as it,
        ):
            await fetched(it, f"http://{host}:{port}/v1/models")
            line, *headers = server.requests[0].decode().replace(USUAL, SHORT).split("\r\n")
            fields = (header.replace(port, "PORT").partition(": ") for header in headers)
            sent.append((line, {name.lower(): value for name, _, value in fields}))
    assert sent[0] == sent[1]


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/metrics",
        "http://10.0.0.1:80",
        "http://10.0.0.1:80/",
        "https://10.0.0.1:80/metrics",
        "http://me:secret@10.0.0.1:80/metrics",
        "http://10.0.0.1:80/a b",
        "http://10.0.0.1:80/a/../b",
        "http://10.0.0.1:80/metrics?x=y",
        "http://10.0.0.1:80/metrics#x",
        "http://10.0.0.1:80/m\r\nx-y: z",
        "http://10.0.0.1:80/métrics",
        "http://[fe80::1%25eth0]:80/metrics",
        "http://engine:80/metrics",
        "HTTP://10.0.0.1:80/metrics",
    ],
)
def test_an_unusual_url_takes_the_general_path(url: str) -> None:
    assert fetching._PLAIN.fullmatch(url) is None


@pytest.mark.parametrize(
    "address", ["127.0.0.1:65536", "300.0.0.1:80", "[::1:80", "[1::2::3]:80", ":80"]
)
async def test_an_impossible_address_is_an_error_of_those_expected(address: str) -> None:
    async with fetcher() as it, asyncio.timeout(2.0):
        with pytest.raises((aiohttp.ClientError, OSError, ValueError)):
            async with it.get(f"http://{address}/metrics"):
                pass


async def test_a_connection_that_is_cut_at_once_is_asked_again_and_no_defect() -> None:
    class Lost(ResponseHandler):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.connection_lost(None)
            transport.abort()

    server = Server([OK])
    async with listening(server) as port, fetcher() as it:
        url = f"http://{SHORT}:{port}/metrics"
        made = iter([Lost(it._loop), Lost(it._loop), Lost(it._loop), ResponseHandler(it._loop)])
        it._connection = lambda: next(made)
        assert await fetched(it, url) == "ServerDisconnectedError"
        assert await fetched(it, url) == (200, b"ok")


async def test_one_connection_at_a_time_to_a_host() -> None:
    server = Server([OK[:-1], OK[-1:]])
    async with listening(server) as port, fetcher() as it:
        urls = [f"http://{SHORT}:{port}/{n}" for n in range(9)]
        assert await asyncio.gather(*(fetched(it, url) for url in urls)) == [(200, b"ok")] * 9
        assert server.connections == 1


async def test_unused_connections_and_hosts_are_dropped(
    monkeypatch: pytest.MonkeyPatch, until: Callable[..., object]
) -> None:
    monkeypatch.setattr(fetching, "_KEPT_S", 0.05)
    server = Server([OK])
    async with listening(server) as port, fetcher() as it:
        await fetched(it, f"http://{SHORT}:1/metrics")
        await fetched(it, f"http://{SHORT}:{port}/metrics")
        assert len(it._hosts) == 2
        assert server.open == 1
        await until(lambda: not it._hosts and not server.open)
        assert it._sweeping is None
        await fetched(it, f"http://{SHORT}:{port}/metrics")
    await until(lambda: not server.open)
