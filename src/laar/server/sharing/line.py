"""A connection to the store without its client's layers, which cost more than what they carry.

The client opens it: address, TLS, password, database. From then on commands are packed, and answers
read, by hiredis alone, and an answer wakes who asked and nothing before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import hiredis

__all__ = ["Line"]


class Line(asyncio.Protocol):
    """One connection; answers come in the order of what was asked.

    Args:
        connection: a connection of the client, not open yet.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transport: Any = None
        self._streams: Any = None
        self._reader = hiredis.Reader()
        self._asked: deque[tuple[asyncio.Future[list[Any]], int, asyncio.TimerHandle]] = deque()
        self._answers: list[Any] = []

    async def open(self) -> None:
        """Opens it, if it is not open."""
        if self._transport is None:
            await self._connection.connect()
            self._transport = self._connection._writer.transport
            self._streams = self._transport.get_protocol()
            self._transport.set_protocol(self)

    def ask(self, *commands: tuple[Any, ...], within_s: float) -> asyncio.Future[list[Any]]:
        """Sends commands, together; their answers follow.

        An answer that is late, or an error, closes the connection: later ones would be taken for
        others.
        """
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[list[Any]] = loop.create_future()
        if self._transport is None:
            asked.set_exception(ConnectionResetError("the connection is closed"))
            return asked
        late = loop.call_later(within_s, self._end, TimeoutError())
        self._asked.append((asked, len(commands), late))
        self._transport.write(b"".join([hiredis.pack_command(each) for each in commands]))
        return asked

    async def close(self) -> None:
        """Closes it."""
        self._end(ConnectionResetError("the connection was closed"))
        await self._connection.disconnect()

    def data_received(self, data: bytes) -> None:
        """Takes answers."""
        self._reader.feed(data)
        while (answer := self._reader.gets()) is not False:
            if isinstance(answer, hiredis.HiredisError):
                self._end(answer)
                return
            self._answers.append(answer)
            asked, count, late = self._asked[0]
            if len(self._answers) == count:
                late.cancel()
                del self._asked[0]
                answers, self._answers = self._answers, []
                if not asked.done():
                    asked.set_result(answers)

    def connection_lost(self, exc: Exception | None) -> None:
        """The store has closed it, or this picker."""
        self._end(exc or ConnectionResetError("the store has closed the connection"))
        self._streams.connection_lost(exc)  # the client waits for it

    def _end(self, fault: Exception) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        while self._asked:
            asked, _, late = self._asked.popleft()
            late.cancel()
            if not asked.done():
                asked.set_exception(fault)
