"""Responses of engines are read even if they arrive in unusual ways."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from laar.datalayer.fetching import get, read_capped, visiting_session
from laar.fleet.membership import EndpointSpec

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
MAX_BYTES = 300_000
SPEC = EndpointSpec(address="127.0.0.1:80", models=("m",))


class Server:
    """Answers each request with the next of `answers`, and repeats the last one.

    The parts of an answer are sent with pauses; None as the last part closes the connection.
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


def session() -> aiohttp.ClientSession:
    return visiting_session({"accept": "x/y"})


async def fetched(it: aiohttp.ClientSession, url: str, *, within_s: float = 20.0) -> object:
    """Return the status and the body, or the name of the error."""
    try:
        sent: list[float] = []
        page = get(it, url, SPEC, sent=lambda: sent.append(time.monotonic()))
        async with asyncio.timeout(within_s), page as answer:
            assert len(sent) == 1
            assert sent[0] <= time.monotonic()
            body = await read_capped(answer.content, MAX_BYTES)
            return answer.status, body if len(body) <= MAX_BYTES else "too long"
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        wrong = isinstance(error, aiohttp.ClientResponseError) or type(error) is aiohttp.ClientError
        return "not HTTP" if wrong else type(error).__name__


def chunked(*parts: bytes) -> list[bytes | None]:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%b\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]


LONG = "too long"
ANSWERS: dict[str, tuple[list[bytes | None], object]] = {
    "whole": ([OK], (200, b"ok")),
    "in pieces": ([OK[i : i + 1] for i in range(len(OK))], (200, b"ok")),
    "no content": ([b"HTTP/1.1 204 No Content\r\n\r\n"], (204, b"")),
    "chunked": (
        chunked(b"a" * 5000, b"b", b"c" * 100_000),
        (200, b"a" * 5000 + b"b" + b"c" * 100_000),
    ),
    "until the end": ([b"HTTP/1.1 200 OK\r\n\r\nall ", b"of it", None], (200, b"all of it")),
    "compressed, unasked": (
        [OK.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")],
        (200, b"ok"),
    ),
    "gzip": (chunked(gzip.compress(b"ok")), (200, b"ok")),
    "deflate": (chunked(zlib.compress(b"ok")), (200, b"ok")),
    "a bomb": (chunked(gzip.compress(bytes(64 << 20))), (200, LONG)),
    "moved": (
        [b"HTTP/1.1 302 Found\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n"],
        (302, b""),
    ),
    "continue first": ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], (200, b"ok")),
    "too long": ([b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 65536] * 40], (200, LONG)),
    "cut off": ([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", None], "ClientPayloadError"),
    "nothing": ([None], "ServerDisconnectedError"),
    "silence": ([], "TimeoutError"),
    "silence in the body": (
        [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"],
        "TimeoutError",
    ),
    "no HTTP": ([b"\x15\x03\x01\x00\x02\x02\x16", None], "not HTTP"),
    "two lengths": (
        [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok"],
        "not HTTP",
    ),
    "endless header": ([b"HTTP/1.1 200 OK\r\nx: ", *[b"y" * 65536] * 20], "not HTTP"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_response_is_read_or_raises_an_error(name: str) -> None:
    answer, expected = ANSWERS[name]
    async with listening(Server(answer)) as port, session() as it:
        url = f"http://127.0.0.1:{port}/metrics"
        within_s = 0.3 if expected == "TimeoutError" else 20.0
        found = [await fetched(it, url, within_s=within_s) for _ in range(3)]
        assert found == [expected] * 3


async def test_a_host_gets_one_connection_at_a_time() -> None:
    server = Server([OK[:-1], OK[-1:]])
    async with listening(server) as port, session() as it:
        urls = [f"http://127.0.0.1:{port}/{n}" for n in range(9)]
        assert await asyncio.gather(*(fetched(it, url) for url in urls)) == [(200, b"ok")] * 9
        assert server.connections == 1
