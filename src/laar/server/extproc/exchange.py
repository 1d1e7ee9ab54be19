"""One ext_proc stream: passes each message to the state machine, and sends its answers.

Nearly every message is answered in the callback that delivers it. If the machine has to wait (a
long body is parsed by another thread, or flow control holds the request), a task waits, and the
transport queues further messages meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from laar.errors import RequestError
from laar.protocol.agreed import DECISION_MARGIN_S
from laar.protocol.events import (
    Ask,
    Closed,
    Decided,
    Event,
    Failed,
    HasRead,
    Immediate,
    Read,
    ResponseBody,
)
from laar.protocol.openai import try_read
from laar.protocol.stream import Stream
from laar.server.extproc.messages import ANSWERS, PASSED, before_chunk, chunk_of, event_of, patience
from laar.server.flow_control import Waiting
from laar.server.transport import Code, Handler
from laar.wire import ext_proc_pb2 as pb

if TYPE_CHECKING:
    from laar.server.extproc.processor import ExternalProcessor
    from laar.server.h2 import H2Call


Wait = Callable[[], Awaitable[Event]]
"""A coroutine function whose result is the machine's next event."""

LATE_S = 5.0
"""Seconds that Envoy waits for a picker that is behind: it might have hung."""


class Exchange(Handler):
    """One stream, from its first message to its end; the processor is shared by all streams."""

    def __init__(self, processor: ExternalProcessor, call: H2Call) -> None:
        self._processor = processor
        self._call = call
        self._stream: Stream | None = None  # created at the first message
        self._held: Waiting | None = None
        self._waiting: asyncio.Task[None] | None = None
        processor.metrics.streams_open += 1
        processor.begun += 1
        processor.leaving.add(self.let_go)

    # -- for the transport -----------------------------------------------------------------------

    def receive(self, message: bytes) -> None:
        """Pass a message to the state machine, and send its answers."""
        try:
            if message[:1] == b"\x2a" and (chunk := chunk_of(message)) and self._pass(chunk):
                return
            event = event_of(pb.ProcessingRequest.FromString(message))
            if event is not None and (wait := self._take(event)) is not None:
                self._call.hold()
                self._waiting = asyncio.create_task(self._go_on(wait))
        except DecodeError:
            self._processor.fault("closed a stream: not an Envoy message")
            self._call.end(Code.INVALID_ARGUMENT, "unreadable message")
        except Exception:  # noqa: BLE001 - a bug must not fail the request
            self._go_on_without()

    def half_closed(self) -> None:
        """End the stream successfully."""
        self._call.end()

    def closed(self) -> None:
        """Stop waiting, and settle the decision if it is still open."""
        processor, stream = self._processor, self._stream
        if self._waiting is not None and self._waiting is not asyncio.current_task():
            self._waiting.cancel()
        if self._held is not None:
            self._held.forget()
        processor.leaving.discard(self.let_go)
        processor.metrics.streams_open -= 1
        if stream is None:
            return
        processor.metrics.ignored_messages += stream.ignored
        processor.metrics.stream_faults += stream.unspliced
        stream.receive(Closed(), processor.clock())

    def reassure(self, *, late: bool = False) -> None:
        """Ask Envoy to keep waiting: only briefly if `late`, unless flow control may hold it.

        Other gateways allow no extension, and log each attempt.
        """
        processor = self._processor
        if self._stream is not None and not self._stream.dialect.is_own:
            return
        is_brief = late and not (processor.flow and processor.flow.by_load)
        longest_s = processor.longest_decision_s
        if self._stream is not None and self._stream.longest_hold_s and processor.flow is not None:
            longest_s = DECISION_MARGIN_S + self._stream.longest_hold_s
        self._call.send(patience(LATE_S if is_brief else longest_s))

    # -- for the processor -----------------------------------------------------------------------

    def let_go(self) -> None:
        """End the stream if Envoy can finish the request by itself."""
        if self._stream is not None and self._stream.can_be_let_go:
            self._stream.answer.let_go = True
            self._call.end()

    # -- inside ----------------------------------------------------------------------------------

    def _pass(self, chunk: bytes) -> bool:
        """Pass a chunk of an answer unchanged; return False if it needs `_take`.

        `_take` would send the same reply, but take three times as long.
        """
        stream, processor = self._stream, self._processor
        now = processor.clock()
        if stream is None or not stream.answer.put_by(chunk, now):
            return False
        if stream.read_answer and not stream.dialect.shows_answers:
            processor.sampler.read(1, now)
        is_kept = stream.dialect.keeps_answers
        self._call.send(PASSED if is_kept else before_chunk(len(chunk)) + chunk)
        return True

    def _take(self, event: Event) -> Wait | None:
        """Pass an event to the machine; return what it has to wait for, or None."""
        processor, call, stream = self._processor, self._call, self._stream
        if stream is None:
            stream = self._stream = Stream(processor.env)
        now = processor.clock()
        if type(event) is ResponseBody and stream.read_answer and not stream.dialect.shows_answers:
            processor.sampler.read(1, now)
        pending: Event | None = event
        while pending is not None:
            actions, pending = stream.receive(pending, now), None
            for action in actions:
                if (write := ANSWERS.get(type(action))) is not None:
                    call.send(write(action))
                    if isinstance(action, Immediate):
                        processor.answered(action)
                        call.end()
                elif isinstance(action, Ask):
                    try:
                        request = action.request
                        may_wait = request.session or request.hints or processor.index.is_tight
                        ask = processor.ask_turn if may_wait else processor.ask
                        asked = ask(request, processor.clock())
                    except RequestError as error:
                        pending = processor.refused(action.request, error)
                        continue
                    if isinstance(asked, Waiting):
                        self._held = asked
                        self.reassure()
                        return partial(self._wait, action, asked, now)
                    pending = Decided(asked, processor.metrics.decided_in(processor.clock() - now))
                elif isinstance(action, Read):
                    # Envoy accepts one extension only: it must cover the wait for earlier bodies.
                    self.reassure()
                    return partial(self._read, action)
        if stream.held_chunks:
            self.reassure()
        self.urgent = stream.decision is not None
        return None

    async def _go_on(self, wait: Wait | None) -> None:
        """Wait for what the machine needs and pass it the results, until it needs nothing more."""
        while wait is not None:
            try:
                wait = self._take(await wait())
            except Exception:  # noqa: BLE001 - a bug must not fail the request
                wait = None
                self._go_on_without()
        self._waiting = None
        self._call.release()

    async def _read(self, read: Read) -> Event:
        processor, loop = self._processor, asyncio.get_running_loop()
        async with processor.reading:  # a stream that ends while waiting here frees its body
            return HasRead(
                await loop.run_in_executor(processor.reader, try_read, read.api, read.body)
            )

    async def _wait(self, ask: Ask, held: Waiting, received: float) -> Event:
        try:
            decision, waited_s = await held.outcome()
        except RequestError as error:
            return self._processor.refused(ask.request, error)
        finally:
            self._held = None
        spent_s = self._processor.clock() - received - waited_s
        return Decided(decision, self._processor.metrics.decided_in(spent_s), waited_s)

    def _go_on_without(self) -> None:
        """Let the request continue after an internal error; end the stream if no answer is due."""
        processor, stream = self._processor, self._stream
        processor.fault("a stream failed; its request continues without the picker", trace=True)
        actions = [] if stream is None else stream.receive(Failed(), processor.clock())
        for action in actions:
            self._call.send(ANSWERS[type(action)](action))
            if isinstance(action, Immediate):
                processor.answered(action)
        if not actions:
            self._call.end()
