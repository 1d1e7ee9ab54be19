"""Measure CPU per call of the ext_proc port, with and without a library for HTTP/2 frames.

There is no socket and no decision: the bytes that Envoy sends for a request are passed to a
connection in this process, in reads of up to 256,000 bytes like uvloop's. A method answers with 300
bytes, or echoes the body as the gateway shape does. The two variants alternate, so that ratios hold
on a busy machine.

    python -m bench frames
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from typing import Any, cast

from fuzz.written import by_the_library
from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.settings import SettingCodes, Settings
from rich.console import Console
from rich.table import Table

from laar.server.h2 import Call, H2Server
from laar.server.h2.call import Handler
from laar.server.h2.connection import Connection

ROUNDS = 15
CALLS = 40
READ_BYTES = 256_000
FRAME_BYTES = 16_384
CHUNK_BYTES = 65_536
HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/bench.Bench/Process"),
    (b":authority", b"bench"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


class _Answers(Handler):
    def __init__(self, call: Call) -> None:
        self._call = call

    def receive(self, message: bytes) -> None:
        chunks = range(0, len(message), CHUNK_BYTES) if message[:1] == b"e" else ()
        for at in chunks:
            self._call.send(message[at : at + CHUNK_BYTES])
        if not chunks:
            self._call.send(b"x" * 300)

    def half_closed(self) -> None:
        self._call.end()

    def closed(self) -> None: ...


class Socket:
    """A transport that discards all data."""

    def write(self, _data: bytes) -> None:
        """Discard the bytes."""

    def close(self) -> None:
        """Fail: the connection must stay open."""
        raise AssertionError("the connection was closed")

    abort = close

    def is_closing(self) -> bool:
        """Return False."""
        return False

    def get_extra_info(self, _name: str) -> None:
        """Return None: there is no TLS."""

    def set_write_buffer_limits(self, high: int) -> None:
        """Ignore the limits."""

    def get_write_buffer_size(self) -> int:
        """Return 0."""
        return 0


class _Side:
    """A connection, and a client that only produces its input."""

    def __init__(self, *, around: bool) -> None:
        server = H2Server(longest_bytes=1 << 20)
        server.add_method("bench.Bench", "Process", _Answers)
        self.connection = Connection(server)
        self.connection.turn_s = math.inf
        h2: Any = self.connection.h2
        if not around:
            by_the_library(self.connection)
        self.connection.connection_made(cast(asyncio.Transport, Socket()))
        self._client = H2Connection(H2Configuration(client_side=True))
        envoys = {SettingCodes.HEADER_TABLE_SIZE: 4096, SettingCodes.INITIAL_WINDOW_SIZE: 1 << 24}
        self._client.local_settings = Settings(client=True, initial_values=envoys)
        self._client.initiate_connection()
        self._client.increment_flow_control_window((1 << 30) - 65_535)
        self.connection.data_received(self._client.data_to_send())
        h2.outbound_flow_control_window = 1 << 30
        self._number = 1

    def cost_us(self, body: bytes) -> float:
        """Return the CPU time of a call, averaged over `CALLS`."""
        message = b"\0" + len(body).to_bytes(4, "big") + body
        client = self._client
        reads = []
        for _ in range(CALLS):
            number = self._number
            self._number += 2
            client.outbound_flow_control_window = 1 << 30
            client.send_headers(number, HEADERS)
            client.streams[number].outbound_flow_control_window = 1 << 30
            for at in range(0, len(message), FRAME_BYTES):
                client.send_data(number, message[at : at + FRAME_BYTES])
            sent = client.data_to_send()
            reads += [sent[at : at + READ_BYTES] for at in range(0, len(sent), READ_BYTES)]
            client.reset_stream(number)
            reads.append(client.data_to_send())
        before = time.thread_time_ns()
        for read in reads:
            self.connection.data_received(read)
        return (time.thread_time_ns() - before) / CALLS / 1000


async def _measure() -> None:
    table = Table("request", "answer", "through, us", "around, us", "ratio")
    sides = _Side(around=False), _Side(around=True)
    for size, kind, answer in (
        (1_000, b"n", "300 bytes"),
        (16_000, b"n", "300 bytes"),
        (400_000, b"n", "300 bytes"),
        (16_000, b"e", "as long"),
        (400_000, b"e", "as long"),
    ):
        rounds = [[side.cost_us(kind * size) for side in sides] for _ in range(ROUNDS)]
        through, around = (statistics.median(costs) for costs in zip(*rounds, strict=True))
        ratio = statistics.median(b / a for a, b in rounds)
        table.add_row(
            f"{size // 1000} KB", answer, f"{through:.0f}", f"{around:.0f}", f"{ratio:.2f}"
        )
    Console().print(table)


def main() -> None:
    asyncio.run(_measure())


if __name__ == "__main__":
    main()
