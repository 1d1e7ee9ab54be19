"""A connection to the store without its client's layers, which cost more than what they carry.

The client opens it: address, TLS, password, database. From then on commands are packed, and answers
read, by hiredis alone, and an answer wakes who asked and nothing before it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, NamedTuple

import hiredis


class _Asked(NamedTuple):
    """Commands under way: their number, and when they are to be answered at the latest."""

    answers: asyncio.Future[list[Any]]
    commands: int
    until_s: float


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
        self._asked: deque[_Asked] = deque()
        self._answers: list[Any] = []
        self._watch: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Open the connection, if it is not open."""
        if self._transport is None:
            await self._connection.connect()
            self._transport = self._connection._writer.transport
            self._streams = self._transport.get_protocol()
            self._transport.set_protocol(self)

    def ask(self, *commands: tuple[Any, ...], within_s: float) -> asyncio.Future[list[Any]]:
        """Send commands together; return their replies.

        An answer that is late, or an error, closes the connection: later ones would be taken for
        others.
        """
        loop = asyncio.get_running_loop()
        answers: asyncio.Future[list[Any]] = loop.create_future()
        if self._transport is None:
            answers.set_exception(ConnectionResetError("the connection is closed"))
            return answers
        self._asked.append(_Asked(answers, len(commands), time.monotonic() + within_s))
        if self._watch is None:  # one timer for all that is asked: most answers come in time
            self._watch = loop.call_later(within_s, self._check_deadline)
        self._transport.write(b"".join(map(hiredis.pack_command, commands)))
        return answers

    async def close(self) -> None:
        """Close the connection."""
        self._end(ConnectionResetError("the connection was closed"))
        await self._connection.disconnect()

    def data_received(self, data: bytes) -> None:
        """Read replies."""
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                self._take(answer)
        except hiredis.HiredisError as fault:
            self._end(fault)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a connection closed by the store, or by this picker."""
        self._end(exc or ConnectionResetError("the store has closed the connection"))
        self._streams.connection_lost(exc)  # the client waits for it

    def _take(self, answer: Any) -> None:
        if isinstance(answer, hiredis.HiredisError):
            raise answer
        if not self._asked:
            raise hiredis.ProtocolError("an answer to nothing")
        self._answers.append(answer)
        if len(self._answers) == self._asked[0].commands:
            asked, found, self._answers = self._asked.popleft().answers, self._answers, []
            if not asked.done():
                asked.set_result(found)

    def _check_deadline(self) -> None:
        self._watch = None
        if self._asked:
            left_s = self._asked[0].until_s - time.monotonic()
            if left_s <= 0.0:
                self._end(TimeoutError())
            else:
                self._watch = asyncio.get_running_loop().call_later(left_s, self._check_deadline)

    def _end(self, fault: Exception) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._asked:
            asked = self._asked.popleft().answers
            if not asked.done():
                asked.set_exception(fault)
