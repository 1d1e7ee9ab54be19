"""`Process` on the transport of `laar.server.h2`."""

from __future__ import annotations

import asyncio

from laar.server.extproc.exchange import Wait
from laar.server.extproc.processor import UNREADABLE, ExternalProcessor
from laar.server.h2.call import Call, Handler
from laar.server.h2.framing import Code


class ProcessCall(Handler):
    """One stream: each message is answered as it comes, and a task is made only for a wait.

    Args:
        processor: decides.
        call: the stream.
    """

    def __init__(self, processor: ExternalProcessor, call: Call) -> None:
        self._call = call
        self._exchange = processor.open(call.metadata, call.end)
        self._waiting: asyncio.Task[None] | None = None
        call.reassure = self._reassure

    def receive(self, message: bytes) -> None:
        """Takes a message through the machine."""
        wait = self._exchange.receive(message)
        self._write()
        if wait is not None:
            self._call.hold()
            self._waiting = asyncio.create_task(self._go_on(wait))

    def half_closed(self) -> None:
        """Ends the stream, as a success."""
        self._call.end()

    def closed(self) -> None:
        """Stops waiting, and settles the exchange."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._exchange.close()

    def _reassure(self) -> None:
        self._exchange.reassure()
        self._write()

    async def _go_on(self, wait: Wait | None) -> None:
        while wait is not None:
            wait = await self._exchange.go_on(wait)
            if wait is None:
                self._waiting = None
            self._write()
        self._call.release()

    def _write(self) -> None:
        exchange, call = self._exchange, self._call
        if exchange.answers:
            for answer in exchange.answers:
                call.send(answer)
            exchange.answers.clear()
        if exchange.unreadable:
            call.end(Code.INVALID_ARGUMENT, UNREADABLE)
        elif exchange.over:
            call.end()
