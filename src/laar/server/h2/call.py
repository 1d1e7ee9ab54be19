"""One call: a stream between its handler and the connection."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from laar.server.h2.framing import PREFIX_BYTES, CallError, Unframer, status_headers
from laar.server.h2.guard import PAID_FRAMES
from laar.server.h2.library import STREAM_WINDOW_BYTES, Headers
from laar.server.transport import Code, Handler

if TYPE_CHECKING:
    from jh2.stream import H2Stream

    from laar.server.h2.connection import Connection

_LOG = logging.getLogger(__name__)

_CHOKED_BYTES = 1 << 20
"""Bytes of unsent answers above which further messages from the peer wait on this stream."""

FRAME_BYTES = 1 << 16
"""Maximum payload of a frame, so that calls take turns. Many peers accept only 16 KB."""

_CREDIT_BYTES = STREAM_WINDOW_BYTES // 2
"""Number of used bytes of a stream's window at which the window is replenished."""

_RESPONSE = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity"),
)


_NO_HANDLER = Handler()
"""The handler of a call before its start and after its end."""


class H2Call:
    """A gRPC call on one HTTP/2 stream, with messages of at most `longest_bytes`."""

    def __init__(
        self,
        connection: Connection,
        stream_id: int,
        *,
        longest_bytes: int,
    ) -> None:
        self.stream_id = stream_id
        self.handler: Handler = _NO_HANDLER
        self.ready = False
        """Whether the call is in the connection's queue of calls with something to write."""
        self.heard = False
        """Whether part of a message was received."""
        self._connection = connection
        self._answered = False  # whether anything was sent
        self._longest_bytes = longest_bytes
        self._unframer: Unframer | None = None  # holds an incomplete message
        self._owed_bytes = 0  # used bytes of the stream's window, not replenished yet
        self._is_whole = False  # a complete message was received
        self._counted_bytes = 0  # this call's part of the connection's held bytes
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._holding = False
        self._remote_done = False
        self._half_closed = False  # the handler's `half_closed` was called
        self._out: deque[bytes | memoryview] = deque()
        self._out_bytes = 0
        self._end: tuple[Code, str] | None = None

    # -- for handlers --------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        """Send a message, in the same loop iteration if the peer's windows allow it."""
        if self._end is None:
            self._out += (len(message).to_bytes(PREFIX_BYTES, "big"), message)
            self._out_bytes += PREFIX_BYTES + len(message)
            self._connection.wants_write(self)

    def end(self, code: Code = Code.OK, text: str = "") -> None:
        """End the call once all messages are sent; has no effect if called again."""
        if self._end is None:
            self._end = code, text
            self._leave()
            self._connection.wants_write(self)

    def hold(self) -> None:
        """Stop passing messages to the handler until `release`; buffer at most a window."""
        self._holding = True

    def release(self) -> None:
        """End the hold and pass on waiting messages."""
        self._holding = False
        self.deliver()

    # -- for the connection: input from the peer -----------------------------------------------

    @property
    def waits(self) -> bool:
        """Return whether a message is waiting for the handler, or still arriving."""
        arrives = not self._is_whole or self._unframer is not None
        return self._end is None and (arrives or (bool(self._inbox) and not self._holding))

    def data_received(self, data: bytes, flow_bytes: int) -> None:
        """Handle a piece of the request, which counts as `flow_bytes` for flow control."""
        self._owed_bytes += flow_bytes
        if self._end is not None:
            return
        length = len(data) - PREFIX_BYTES
        if (
            int.from_bytes(data[:PREFIX_BYTES], "big") == length  # and no compression flag
            and self._unframer is None
            and length <= self._longest_bytes
            and not (self._holding or self._inbox or self._out_bytes > _CHOKED_BYTES)
            and (self._connection.next_turn is None or self.handler.urgent)
        ):  # exactly one complete message, as usual
            self.heard = self._is_whole = True
            self._connection.guard.paid_frames += PAID_FRAMES
            try:
                self.handler.receive(data[PREFIX_BYTES:])
            except Exception:  # noqa: BLE001 - ends only this call
                self._failed()
        else:
            self._pieces_received(data)
        if self._owed_bytes >= _CREDIT_BYTES:
            self._credit()

    def _pieces_received(self, data: bytes) -> None:
        """Handle parts of messages, several messages, or a message that must wait."""
        self.heard, was_coming = self.heard or bool(data), self.waits
        if self._unframer is None:
            self._unframer = Unframer(self._longest_bytes)
        unframer = self._unframer
        try:
            for message in unframer.feed(data):
                self._is_whole = True
                self._connection.guard.paid_frames += PAID_FRAMES
                self._inbox.append(message)
                self._inbox_bytes += len(message)
        except CallError as error:  # earlier messages are handled, however the bytes are split
            self.deliver()
            self.end(error.code, error.text)
            return
        if not unframer.held:
            self._unframer = None
        if self._connection.next_turn is None or self.handler.urgent:
            self.deliver()
        elif self._inbox:
            self._connection.late.append(self)
        if self.waits and not was_coming:
            self._connection.is_coming(self)
        self.account()

    def deliver(self) -> None:
        """Pass waiting messages to the handler until it stops accepting them."""
        while self._inbox and not (self._end or self._holding or self._out_bytes > _CHOKED_BYTES):
            message = self._inbox.popleft()
            self._inbox_bytes -= len(message)
            try:
                self.handler.receive(message)
            except Exception:  # noqa: BLE001 - ends only this call
                self._failed()
        if self._remote_done and not (
            self._inbox or self._holding or self._half_closed or self._end
        ):
            self._half_closed = True
            try:
                self.handler.half_closed()
            except Exception:  # noqa: BLE001 - ends only this call
                _LOG.exception("a call failed")
        self.account()
        self._credit()

    def remote_ended(self) -> None:
        """Handle the end of the peer's half of the stream."""
        self._remote_done = True
        if self._end is None and self._unframer is not None:
            self.end(Code.INTERNAL, "the stream ended within a message")
        if not self._inbox:  # an Envoy that gives up ends the stream, then resets it
            self.deliver()

    def lost(self) -> None:
        """End the call because its stream is gone."""
        self._drop()
        if self._end is None:
            self._end = Code.CANCELLED, ""
            self._leave()

    # -- for the connection: writing -----------------------------------------------------------

    def account(self) -> None:
        """Update the connection's held bytes; end the call if they exceed the limit."""
        held = self._inbox_bytes + self._out_bytes
        held += len(self._unframer.held) if self._unframer else 0
        if held != self._counted_bytes:
            room = self._connection.hold_bytes(held - self._counted_bytes)
            self._counted_bytes = held
            if not room:
                self._drop()
                self._end = None  # replaces an end that still waits for a window
                self.end(Code.RESOURCE_EXHAUSTED, "too many messages are unfinished or unread")

    def write(self) -> bool:
        """Write the next frame; return whether more could be written."""
        connection = self._connection
        h2 = connection.h2
        stream = h2.streams.get(self.stream_id)
        if stream is None or stream.closed:  # its reset is handled next
            return False
        if not self._answered:
            self._answered = True
            if self._end is not None and not self._out:
                self._finish(stream, (*_RESPONSE, *status_headers(*self._end)))
                return False
            h2.write_headers(stream, _RESPONSE)
        if self._out:
            most = min(
                h2.outbound_flow_control_window,
                stream.outbound_flow_control_window,
                h2.max_outbound_frame_size,
                FRAME_BYTES,
            )
            if most <= 0:
                connection.blocked[self] = None  # a window update unblocks it
                self.account()
                return False
            was_choked = self._out_bytes > _CHOKED_BYTES
            if self._out_bytes <= most:
                h2.write_data(stream, self._out, self._out_bytes)
                self._out.clear()
                self._out_bytes = 0
            else:
                h2.write_data(stream, self._taken(most), most)
            if self._inbox and was_choked:
                self.deliver()
            if self._counted_bytes or self._out:
                self.account()
        if self._out:
            return True
        if self._end is not None:
            self._finish(stream, tuple(status_headers(*self._end)))
        return False

    def _finish(self, stream: H2Stream, headers: Headers) -> None:
        self._connection.h2.write_headers(stream, headers, end=True)
        self._connection.finished(self, reset=not self._remote_done)

    def _taken(self, count: int) -> Sequence[bytes | memoryview]:
        """Remove the first `count` bytes of the output, which has more, and return them."""
        out, left = self._out, count
        pieces: list[bytes | memoryview] = []
        while left:
            piece = out.popleft()
            if len(piece) > left:
                view = memoryview(piece)
                out.appendleft(view[left:])
                piece = view[:left]
            pieces.append(piece)
            left -= len(piece)
        self._out_bytes -= count
        return pieces

    # -- inside --------------------------------------------------------------------------------

    def _drop(self) -> None:
        self._out.clear()
        self._out_bytes = 0
        self._connection.blocked.pop(self, None)
        if self._counted_bytes:
            self.account()

    def _failed(self) -> None:
        _LOG.exception("a call failed")
        self.end(Code.UNKNOWN, "internal error")

    def _leave(self) -> None:
        """Detach from the handler."""
        self._inbox.clear()
        self._inbox_bytes = 0
        self._unframer = None
        if self._counted_bytes:
            self.account()
        handler, self.handler = self.handler, _NO_HANDLER  # no cycle is left to collect
        try:
            handler.closed()
        except Exception:  # noqa: BLE001 - a call's guard
            _LOG.exception("a call failed")

    def _credit(self) -> None:
        """Replenish the window once half of it is used and no message waits here."""
        if self._owed_bytes >= _CREDIT_BYTES and not self._inbox and not self._remote_done:
            self._connection.credit(self, self._owed_bytes)
            self._owed_bytes = 0
