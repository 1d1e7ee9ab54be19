"""A connection to a store that answers late, in pieces, wrongly or not at all."""

import asyncio
import contextlib

import pytest

hiredis = pytest.importorskip("hiredis", reason="needs pip install '.[share]'")

from laar.server.sharing.line import Line  # noqa: E402 - after the extra is known to be there


class Connection:
    """As the client has one."""

    def __init__(self, path):
        self._path = path
        self._writer = None

    async def connect(self):
        _, self._writer = await asyncio.open_unix_connection(self._path)

    async def disconnect(self):
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()


class Server:
    """Keeps what it is asked, and writes what a test gives."""

    def __init__(self):
        self.asked = b""
        self.writer = None

    async def serve(self, reader, writer):
        self.writer = writer
        while data := await reader.read(1 << 16):
            self.asked += data
        writer.close()


@pytest.fixture
async def server(tmp_path):
    server = Server()
    listening = await asyncio.start_unix_server(server.serve, tmp_path / "store")
    server.path = tmp_path / "store"
    yield server
    if server.writer is not None:
        server.writer.close()
    listening.close()


@pytest.fixture
async def line(server):
    line = Line(Connection(server.path))
    await line.open()
    async with asyncio.timeout(5.0):
        while server.writer is None:  # noqa: ASYNC110 - another task sets it
            await asyncio.sleep(0.001)
    yield line
    async with asyncio.timeout(5.0):  # a client that waited for its own protocol would hang
        await line.close()


async def test_answers_in_pieces_go_to_who_asked_in_order(server, line):
    one = line.ask(("GET", "a"), ("GET", b"b"), within_s=5.0)
    two = line.ask(("TIME",), within_s=5.0)
    for byte in b"$3\r\nabc\r\n$-1\r\n*2\r\n$1\r\n7\r\n:8\r\n":
        server.writer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert await one == [b"abc", None]
    assert await two == [[b"7", 8]]
    gets = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\nb\r\n"
    assert server.asked == gets + b"*1\r\n$4\r\nTIME\r\n"


async def test_the_answer_to_one_who_left_goes_to_no_other(server, line):
    left, stays = (line.ask(("TIME",), within_s=5.0) for _ in range(2))
    left.cancel()
    server.writer.write(b":1\r\n:2\r\n")
    assert await stays == [2]


async def test_a_late_answer_closes_the_connection(server, line):
    server.writer.write(b":1\r\n")
    soon = line.ask(("TIME",), within_s=0.05)
    assert await soon == [1]
    late = line.ask(("TIME",), within_s=0.05)
    with pytest.raises(TimeoutError):
        await late
    with pytest.raises(ConnectionResetError):
        await line.ask(("TIME",), within_s=5.0)


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        (b"-OOM command not allowed\r\n", "OOM"),
        (b":1\r\n-NOPERM no permissions\r\n", "NOPERM"),
        (b"what\r\n", "Protocol error"),
        (b":1\r\n:2\r\n:3\r\n", "an answer to nothing"),
    ],
)
async def test_a_wrong_answer_closes_the_connection(server, line, written, fault):
    both = line.ask(("GET", "a"), ("GET", "b"), within_s=5.0)
    server.writer.write(written)
    if fault == "an answer to nothing":
        assert await both == [1, 2]
    else:
        with pytest.raises(hiredis.HiredisError, match=fault):
            await both
    with pytest.raises(ConnectionResetError):
        await line.ask(("GET", "c"), within_s=5.0)


async def test_a_store_that_hangs_up_is_noticed(server, line):
    asked = line.ask(("TIME",), within_s=5.0)
    server.writer.close()
    with pytest.raises(ConnectionResetError):
        await asked
