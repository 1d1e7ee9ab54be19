"""One call: a stream between its handler and the connection."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from laar.server.h2.framing import (
    CallError,
    Code,
    Unframer,
    frame,
    metadata_of,
    status_headers,
)

if TYPE_CHECKING:
    from jh2.stream import H2Stream

    from laar.server.h2.connection import Connection
    from laar.server.h2.library import Headers

_LOG = logging.getLogger(__name__)

_CHOKED_BYTES = 1 << 20
"""Answers that wait for the peer, beyond which it is not listened to on this stream."""

FRAME_BYTES = 1 << 16
"""Most that a frame is given, so that calls take turns; many peers take 16 KB only."""

_CREDIT_SHARE = 2
"""A stream's window is given back when this part of it is used up: a half."""

_RESPONSE = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity"),
)


class Handler(Protocol):
    """Serves one call. Each method is called by the event loop, and returns soon."""

    def receive(self, message: bytes) -> None:
        """Takes a message."""
        ...

    def half_closed(self) -> None:
        """Takes that the peer sends no more; not called while the call is held."""
        ...

    def closed(self) -> None:
        """Takes that the call is over, for any reason. Called once, after all other methods."""
        ...


class _Nobody:
    """Handles a call that was over before it began."""

    def receive(self, message: bytes) -> None: ...

    def half_closed(self) -> None: ...

    def closed(self) -> None: ...


class Call:
    """A call.

    Args:
        connection: the stream's connection.
        stream_id: the stream's number in HTTP/2.
        headers: headers of the request.
        longest_bytes: longest message that is taken.
        window_bytes: announced window of the stream.
    """

    def __init__(
        self,
        connection: Connection,
        stream_id: int,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        longest_bytes: int,
        window_bytes: int,
    ) -> None:
        self.stream_id = stream_id
        self.handler: Handler = _Nobody()
        self.ready = False
        """Whether the call is in the connection's list of calls that have something to write."""
        self.answered = False
        """Something was sent."""
        self.heard = False
        """Some of a message came."""
        self.reassure: Callable[[], None] | None = None
        """Has the peer wait longer, while its message is still coming; None for no use."""
        self.deadline: asyncio.TimerHandle | None = None
        self._connection = connection
        self._headers = headers
        self._unframer = Unframer(longest_bytes)
        self._credit_bytes = window_bytes // _CREDIT_SHARE
        self._owed_bytes = 0  # of the stream's window
        self._is_whole = False  # a message came
        self._counted_bytes = 0  # among those that the connection holds
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._holding = False
        self._remote_done = False
        self._half_closed = False  # and the handler knows
        self._out: deque[bytes | memoryview] = deque()
        self._out_bytes = 0
        self._end: tuple[Code, str] | None = None

    # -- for handlers --------------------------------------------------------------------------

    def metadata(self) -> list[tuple[str, str | bytes]]:
        """The request's headers."""
        return metadata_of(self._headers)

    def send(self, message: bytes) -> None:
        """Sends a message, in the same turn of the loop where the peer lets it."""
        if self._end is None:
            framed = frame(message)
            self._out.append(framed)
            self._out_bytes += len(framed)
            self._connection.wants_write(self)

    def end(self, code: Code = Code.OK, text: str = "") -> None:
        """Ends the call once all sent messages are out; a second call changes nothing."""
        if self._end is None:
            self._end = code, text
            self._leave()
            self._connection.wants_write(self)

    def hold(self) -> None:
        """Gives the handler no messages until `release`; beyond a window's worth none is taken."""
        self._holding = True

    def release(self) -> None:
        """Ends a hold."""
        self._holding = False
        self._deliver()

    # -- for the connection: input of the peer -------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether a message is still coming: the first, or the rest of one that has begun."""
        return self._end is None and (self._unframer.midway or not self._is_whole)

    def data_received(self, data: bytes, flow_bytes: int) -> None:
        """Takes a piece of the request.

        Args:
            data: the piece.
            flow_bytes: bytes that it took of the windows.
        """
        self._owed_bytes += flow_bytes
        if data:
            self.heard = True
        if self._end is not None:
            return
        unframer = self._unframer
        was_coming = unframer.midway or not self._is_whole
        try:
            for message in unframer.feed(data):
                if self._end is not None:  # by the message before it
                    return
                self._is_whole = True
                self._connection.guard.useful()
                if self._holding or self._inbox or self._out_bytes > _CHOKED_BYTES:
                    self._inbox.append(message)
                    self._inbox_bytes += len(message)
                else:
                    self._hand_over(message)
        except CallError as error:  # messages before it count, however the bytes were cut
            self.end(error.code, error.text)
            return
        if unframer.midway and not was_coming and self._end is None:
            self._connection.is_coming(self)
        if unframer.held_bytes + self._inbox_bytes != self._counted_bytes:
            self._account()
        if self._owed_bytes >= self._credit_bytes:
            self._credit()

    def remote_ended(self) -> None:
        """Takes that the peer sends no more."""
        self._remote_done = True
        if self._end is None and self._unframer.midway:
            self.end(Code.INTERNAL, "the stream ended within a message")
        self._deliver()

    def expire(self) -> None:
        """Takes that the deadline has passed."""
        self._drop()
        self.end(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def lost(self) -> None:
        """Takes that the stream is gone."""
        self._drop()
        if self._end is None:
            self._end = Code.CANCELLED, ""
            self._leave()

    # -- for the connection: writing -----------------------------------------------------------

    def write(self) -> bool:
        """Writes the next frame to the library; whether there is more that could be written."""
        connection = self._connection
        h2 = connection.h2
        stream = h2.streams.get(self.stream_id)
        if stream is None or stream.closed:  # a reset stands behind the frame that is being handled
            return False
        if not self.answered:
            self.answered = True
            if self._end is not None and not self._out:
                self._finish(stream, (*_RESPONSE, *status_headers(*self._end)))
                return False
            h2.write_headers(stream, _RESPONSE)
        if self._out:
            room = min(h2.may_send(stream), FRAME_BYTES)
            if room <= 0:
                connection.blocked[self] = None  # a window update brings it back
                return False
            self._write_data(stream, room)
            if self._inbox and not self._is_stopped():
                self._deliver()
        if self._out:
            return True
        if self._end is not None:
            self._finish(stream, tuple(status_headers(*self._end)))
        return False

    def _finish(self, stream: H2Stream, headers: Headers) -> None:
        self._connection.h2.write_headers(stream, headers, end=True)
        self._connection.finished(self, reset=not self._remote_done)

    def _write_data(self, stream: H2Stream, room: int) -> None:
        """Writes a frame of at most `room` bytes."""
        out = self._out
        pieces: list[bytes | memoryview]
        if self._out_bytes <= room:
            pieces, length = list(out), self._out_bytes
            out.clear()
        else:
            pieces, length, left = [], room, room
            while left:
                piece = out.popleft()
                if len(piece) > left:
                    view = memoryview(piece)
                    out.appendleft(view[left:])
                    piece = view[:left]
                pieces.append(piece)
                left -= len(piece)
        self._out_bytes -= length
        self._connection.h2.write_data(stream, pieces, length)

    # -- inside --------------------------------------------------------------------------------

    def _drop(self) -> None:
        self._out.clear()
        self._out_bytes = 0
        self._connection.blocked.pop(self, None)

    def _is_stopped(self) -> bool:
        return self._holding or self._out_bytes > _CHOKED_BYTES

    def _deliver(self) -> None:
        """Hands over what waits, as far as the handler takes it."""
        while self._inbox and self._end is None and not self._is_stopped():
            message = self._inbox.popleft()
            self._inbox_bytes -= len(message)
            self._hand_over(message)
        taken = not (self._inbox or self._holding or self._half_closed)
        if taken and self._remote_done and self._end is None:
            self._half_closed = True
            self._guarded(self.handler.half_closed)
        self._account()
        self._credit()

    def _hand_over(self, message: bytes) -> None:
        try:
            self.handler.receive(message)
        except Exception:  # noqa: BLE001 - a call's guard
            _LOG.exception("a call failed")
            self.end(Code.UNKNOWN, "internal error")

    def _leave(self) -> None:
        """Parts with the handler."""
        if self.deadline is not None:
            self.deadline.cancel()
        self._inbox.clear()
        self._inbox_bytes = 0
        self._unframer = Unframer(0)
        self._account()
        self.reassure = None  # no cycle, which only a collection of all would free
        handler, self.handler = self.handler, _Nobody()
        self._guarded(handler.closed)

    @staticmethod
    def _guarded(step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001 - a call's guard
            _LOG.exception("a call failed")

    def _account(self) -> None:
        """Counts the held bytes among those of the connection, which have a limit."""
        held = self._unframer.held_bytes + self._inbox_bytes
        if held != self._counted_bytes:
            room = self._connection.hold_bytes(held - self._counted_bytes)
            self._counted_bytes = held
            if not room and self._end is None:
                self.end(Code.RESOURCE_EXHAUSTED, "too many unfinished messages")

    def _credit(self) -> None:
        """Gives the window back, once half of it is used and nothing of it waits here."""
        if self._owed_bytes >= self._credit_bytes and not self._inbox and not self._remote_done:
            self._connection.credit(self, self._owed_bytes)
            self._owed_bytes = 0
