"""An engine on a raw socket, for what an HTTP server would not do: resets, early refusals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

_LENGTH = re.compile(rb"(?im)^content-length: *(\d+)\r?$")
_LAARS = re.compile(rb"(?im)^user-agent: *laar-")

Behavior = Callable[["Arrived"], Awaitable[None]]
"""Answers a request, or does not. An engine closes the connection after it has returned."""


@dataclass
class Arrived:
    """A request at an engine."""

    engine: SocketEngine
    head: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    body: bytes = b""

    async def read(self) -> None:
        """Read the body."""
        if length := _LENGTH.search(self.head):
            self.body = await self.reader.readexactly(int(length[1]))
        elif b"chunked" in self.head.lower():
            while size := int((await self.reader.readline()).split(b";")[0], 16):
                self.body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()

    async def answer(
        self, status: int = 200, body: bytes = b'{"choices": [{"text": "ok"}]}'
    ) -> None:
        lines = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close"
        self.writer.write(b"HTTP/1.1 %d X\r\n" % status + lines % len(body) + b"\r\n\r\n" + body)
        await self.writer.drain()

    def reset(self) -> None:
        """Break the connection off, without an answer."""
        self.writer.transport.abort()


async def well(arrived: Arrived) -> None:
    await arrived.read()
    await arrived.answer()


@dataclass
class SocketEngine:
    """An engine that answers as `behavior` does; probes and scrapes always succeed."""

    behavior: Behavior = well
    arrived: list[Arrived] = field(default_factory=list)
    """The requests so far, without those of laar itself."""
    address: str = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_failure: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = Arrived(self, await reader.readuntil(b"\r\n\r\n"), reader, writer)
            if _LAARS.search(request.head):
                await well(request)
            else:
                self.arrived.append(request)
                await self.behavior(request)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
