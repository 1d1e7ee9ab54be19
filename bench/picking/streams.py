"""Hold many concurrent answers open, over HTTP/2 without TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset

__all__ = ["Held", "hold_streams"]

STREAMS_A_CONNECTION = 100
TIMEOUT_S = 60.0


@dataclass(slots=True)
class Held:
    """Counts of streams that began a 200 answer, and of streams that ended early."""

    answered: int = 0
    broken: int = 0


@asynccontextmanager
async def hold_streams(url: str, count: int, body: bytes) -> AsyncIterator[Held]:
    """Open `count` endless answers, and hold those that begin within `TIMEOUT_S`."""
    host, _, port = url.partition("://")[2].partition(":")
    held = Held()
    loop = asyncio.get_running_loop()
    ends = loop.time() + TIMEOUT_S
    async with AsyncExitStack() as stack:
        for first in range(0, count, STREAMS_A_CONNECTION):
            many = min(STREAMS_A_CONNECTION, count - first)
            transport, client = await loop.create_connection(
                partial(_Client, held, many, body), host, int(port)
            )
            stack.callback(transport.abort)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(ends):
                    await client.all_begun.wait()
        yield held


class _Client(asyncio.Protocol):
    def __init__(self, held: Held, many: int, body: bytes) -> None:
        self.all_begun = asyncio.Event()
        self._held, self._many, self._body = held, many, body
        self._begun = 0
        self._transport: Any = None  # uvloop's is not an `asyncio.Transport`
        self._h2 = H2Connection(H2Configuration(client_side=True))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._h2.initiate_connection()
        for _ in range(self._many):
            stream = self._h2.get_next_available_stream_id()
            headers = [
                (":method", "POST"),
                (":scheme", "http"),
                (":authority", "bench"),
                (":path", "/v1/chat/completions?chunks=0"),
                ("content-type", "application/json"),
            ]
            self._h2.send_headers(stream, headers)
            self._h2.send_data(stream, self._body, end_stream=True)
        self._transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            if isinstance(event, ResponseReceived):
                answered = (b":status", b"200") in (event.headers or ())
                self._begun += 1
                self._held.answered += answered
                if self._begun == self._many:
                    self.all_begun.set()
            elif isinstance(event, StreamEnded | StreamReset):
                self._held.broken += 1
            elif isinstance(event, DataReceived) and event.stream_id is not None:
                length = event.flow_controlled_length or 0
                self._h2.acknowledge_received_data(length, event.stream_id)
        self._transport.write(self._h2.data_to_send())
