"""One ext_proc stream between a transport and the machine: bytes in, answers out, nothing awaited.

A transport hands over each message and then writes what `answers` holds. Nearly always that is all.
Where the machine has to wait (a long body is read by another thread, or flow control holds the
request) it gets a `Wait` back; it lets `go_on` finish that before it hands over the next message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from laar.errors import RequestError
from laar.protocol.events import (
    Action,
    Ask,
    Event,
    Failed,
    HasRead,
    Immediate,
    Noted,
    Read,
    ResponseBody,
    Served,
)
from laar.protocol.openai import try_read
from laar.protocol.stream import Stream
from laar.server.extproc.messages import event_of, message_of, patience
from laar.server.flow_control import Waiting
from laar.wire import ext_proc_pb2 as pb

if TYPE_CHECKING:
    from laar.server.extproc.processor import ExternalProcessor

Wait = Callable[[], Awaitable[Event]]
"""A wait of the machine that has not begun yet; its result is the machine's next event."""


class Exchange:
    """One stream.

    Args:
        processor: decides, counts and settles.
        stream: the machine.
        end: has the transport close the stream as a success.
    """

    def __init__(
        self, processor: ExternalProcessor, stream: Stream, end: Callable[[], None]
    ) -> None:
        self._processor = processor
        self._stream = stream
        self._held: Waiting | None = None
        self._end = end
        self.answers: list[bytes] = []
        """Messages that the transport writes, and clears."""
        self.over = False
        """Whether the transport must close the stream once the answers are written."""
        self.unreadable = False
        """Whether it must close the stream as that of a peer which is no Envoy."""

    @property
    def queued(self) -> bool:
        """Whether flow control holds the request."""
        return self._held is not None

    @property
    def can_be_let_go(self) -> bool:
        """Whether Envoy can finish the request without this stream."""
        return self._stream.can_be_let_go

    def let_go(self) -> None:
        """Ends the stream before its request."""
        self._stream.let_go()
        self._end()

    def reassure(self) -> None:
        """Has Envoy wait for the answer to a message that is still coming."""
        self.answers.append(patience(self._processor.longest_decision_s))

    def receive(self, data: bytes) -> Wait | None:
        """Takes one message through the machine; returns its wait, None where it need not wait."""
        try:
            message = pb.ProcessingRequest.FromString(data)
        except DecodeError:
            self._processor.fault("a message that is none of Envoy's ended its stream")
            self.over = self.unreadable = True
            return None
        try:
            event = event_of(message)
            return None if event is None else self._take(event)
        except Exception:  # noqa: BLE001 - a stream's guard
            self._go_on_without()
            return None

    async def go_on(self, wait: Wait) -> Wait | None:
        """Waits, and takes the result through the machine; returns its next wait, if any."""
        try:
            return self._take(await wait())
        except Exception:  # noqa: BLE001 - a stream's guard
            self._go_on_without()
            return None

    def close(self) -> None:
        """Settles the decision that is still open. Called once, however the exchange ended."""
        if self._held is not None:
            self._held.forget()
        self._processor.closed(self, self._stream)

    def _take(self, event: Event) -> Wait | None:
        processor, stream = self._processor, self._stream
        now = processor.clock()
        if type(event) is ResponseBody and stream.asks_for_answer:
            processor.sampler.read(1, now)
        pending: Event | None = event
        while pending is not None:
            actions, pending = stream.receive(pending, now), None
            for action in actions:
                kind = type(action)
                if kind is Read:
                    assert isinstance(action, Read)
                    # Others may be read first. Envoy takes one wish, so this is for the queue too.
                    self.reassure()
                    return self._reading(action)
                if kind is Ask:
                    assert isinstance(action, Ask)
                    asked = processor.decide(action, now)
                    if isinstance(asked, Waiting):
                        self._held = asked
                        self.reassure()
                        return self._waiting(action, asked, now)
                    pending = asked
                elif kind is Served:
                    processor.note(action, now)
                    pending = Noted()
                elif self._write(action):
                    self.over = kind is Immediate
                else:
                    processor.note(action, now)
        if type(event) is ResponseBody and stream.holds_back:
            self.reassure()
        return None

    def _reading(self, action: Read) -> Wait:
        async def read() -> Event:
            loop = asyncio.get_running_loop()
            processor = self._processor
            async with processor.reading:  # whose streams end while they wait here keep no body
                return HasRead(
                    await loop.run_in_executor(processor.reader, try_read, action.api, action.body)
                )

        return read

    def _waiting(self, ask: Ask, held: Waiting, received: float) -> Wait:
        async def wait() -> Event:
            try:
                decision, waited_s = await held.outcome()
            except RequestError as error:
                return self._processor.refused(ask.request, error)
            finally:
                self._held = None
            return self._processor.decided(decision, received + waited_s)

        return wait

    def _go_on_without(self) -> None:
        """After an internal error: lets the request go on, or closes the stream where that does."""
        self._processor.fault("a stream failed; its request goes on without the picker", trace=True)
        actions = self._stream.receive(Failed(), self._processor.clock())
        written = [self._write(action) for action in actions]
        self.over = not any(written)

    def _write(self, action: Action) -> bool:
        """Writes an action that is a message; returns whether it is one."""
        answer = message_of(action)
        if answer is None:
            return False
        if isinstance(action, Immediate):
            self._processor.answered(action)
        self.answers.append(answer)
        return True
