"""One HTTP/2 connection: an asyncio protocol around jh2's state machine.

The bytes of one read are handled and answered before the next read. Connections take turns: one
whose time is up reads ahead, to extend timeouts and drop calls that are reset. Messages wait in
their calls: outgoing ones for windows and a writable socket, received ones for their handlers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import jh2.events as events
from jh2.errors import ErrorCodes
from jh2.exceptions import ProtocolError
from jh2.hyperframe.frame import GoAwayFrame

from laar.server.h2.call import H2Call
from laar.server.h2.guard import DATA, Budget, FloodError, Guard
from laar.server.h2.library import CONNECTION_WINDOW_BYTES, HEADER_LIST_BYTES, Library
from laar.server.transport import ALIVE_S, KEEPALIVE_S, SLOW_S, Code

if TYPE_CHECKING:
    from laar.server.h2.listening import H2Server

_LOG = logging.getLogger(__name__)

TURN_S = 0.002
"""Seconds of event loop time that a connection may read at once, about 40 messages of 1 KB, and
seconds to handle messages that had to wait. The rest waits until other connections had a turn."""

MAX_LATE = 4000
"""Number of waiting messages at which nothing is read: seconds of work. Input backs up at the peer,
and Envoys decide themselves. It is also not read while calls hold `CONNECTION_WINDOW_BYTES`."""

GREETING_S = 10.0
"""Seconds to wait for the peer's preface and settings."""

LINGER_S = 1.0
"""Seconds that a peer has to read the reason before its connection is aborted."""

_UNSENT_BYTES = 256 << 10
_WRITE_BYTES = 128 << 10
"""Bytes collected before a write, which then shows whether the socket accepts more."""
_FLOODED_BYTES = 4 << 20
"""Maximum bytes of unread answers to a peer's control frames."""

_PING = b"laar-liv"
_DRAIN_PING = b"laar-bye"
_LAST_STREAM = 2**31 - 1


class Connection(asyncio.Protocol):
    """A server-side connection; its methods and limits are the server's."""

    turn_s = TURN_S

    def __init__(self, server: H2Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport  # from `connection_made` on
        self._calls: dict[int, H2Call] = {}
        self._ready: deque[H2Call] = deque()
        self._coming: deque[tuple[float, H2Call]] = deque()
        """Calls whose message may still be arriving or waiting, with the time at which it began."""
        self.blocked: dict[H2Call, None] = {}
        """Calls waiting for one of the peer's windows, in order."""
        self._reading = False
        self._frames: Iterator[tuple[int, int, bytes]] = iter(())  # rest of an unfinished read
        self.next_turn: asyncio.Handle | None = None
        """The turn until which messages have to wait."""
        self.late: deque[H2Call] = deque()
        """Calls with messages that wait, in order."""
        self._pumping: asyncio.Handle | None = None
        self._unwritable = False
        self._closing = False
        self._is_lost = False
        self._greeted = self._pinged = False
        self._draining = False  # GOAWAY was sent
        self._refusing = False  # the peer has received the GOAWAY
        self._held_bytes = 0
        self._heard = True
        self._timer: asyncio.TimerHandle | None = None
        now = self._loop.time()
        self.h2 = Library(server.max_streams)
        self.guard = Guard(now, self.h2.takes)
        self._resets = Budget(1000, 200, now)

    # -- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting."""
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._abort("the peer does not offer h2 in its TLS handshake (ALPN)")
            return
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        self._pump()
        self._timer = self._loop.call_later(GREETING_S, self._look)
        if self._server.stopping:
            self.drain()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes and write any replies."""
        if self._closing:
            return
        self._frames = chain(self._frames, self.guard.feed(data, self._loop.time()))
        if self.next_turn is None:
            self._take_turn()

    def _take_turn(self) -> None:
        """Handle frames of a read until the turn is over, then messages that had to wait."""
        if self._closing:
            return
        self._heard = self._reading = True
        end, is_over = perf_counter() + self.turn_s, True
        try:
            for kind, stream_id, piece in self._frames:
                if kind == DATA:
                    if (call := self._calls.get(stream_id)) is not None:
                        call.data_received(piece, len(piece))
                else:
                    for event in self.h2.received(kind, stream_id, piece):
                        if (react := _REACTIONS.get(type(event))) is not None:
                            react(self, event)
                if perf_counter() >= end:
                    is_over = False
                    break
            end = perf_counter() + self.turn_s
            while self.late and perf_counter() < end:
                self.late.popleft().deliver()
        except FloodError as error:
            self._fail(str(error), ErrorCodes.ENHANCE_YOUR_CALM)
        except ProtocolError as error:  # the library has queued a GOAWAY
            self._fail(f"the peer broke HTTP/2: {type(error).__name__}", None)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a Rust panic is not an Exception
            _LOG.error("a connection failed", exc_info=error)
            self._fail("an internal error", ErrorCodes.INTERNAL_ERROR)
        finally:
            self._reading = False
        if self._coming:
            self._reassure(self._loop.time())
        used_bytes = CONNECTION_WINDOW_BYTES - self.h2.inbound_flow_control_window
        if used_bytes >= CONNECTION_WINDOW_BYTES // 2 and not self._closing:
            # Bytes that calls hold are limited separately.
            self.h2.increment_flow_control_window(used_bytes)
        self._pump()
        was_behind, is_behind = self.next_turn is not None, not is_over or bool(self.late)
        self.next_turn = self._loop.call_soon(self._take_turn) if is_behind else None
        is_full = len(self.late) >= MAX_LATE or self._held_bytes >= CONNECTION_WINDOW_BYTES
        if is_behind and (is_full or not is_over):
            self._transport.pause_reading()
        elif was_behind:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls."""
        self._closing = self._is_lost = True
        self.blocked.clear()
        for handle in (self._timer, self._pumping, self.next_turn):
            if handle is not None:
                handle.cancel()
        self.late.clear()
        self._lose_calls()

    def _lose_calls(self) -> None:
        """End all calls, yielding to other connections in between."""
        end = perf_counter() + self.turn_s
        while self._calls:
            _, call = self._calls.popitem()
            self._server.open_calls.take(-1, 0)
            call.lost()
            if perf_counter() >= end:
                self._loop.call_soon(self._lose_calls)
                return
        if self._is_lost:
            self._ready.clear()
            self._coming.clear()
            self.h2.forget()
            self._server.forget(self)

    def pause_writing(self) -> None:
        """Stop writing: the peer reads slowly, so answers stay in their calls."""
        self._unwritable = True

    def resume_writing(self) -> None:
        """Continue writing."""
        self._unwritable = False
        self._pump()

    # -- for calls -----------------------------------------------------------------------------

    def wants_write(self, call: H2Call) -> None:
        """Queue a call for writing at the end of this read, or else of this loop iteration."""
        if not call.ready:
            call.ready = True
            self._ready.append(call)
        if self._unwritable:
            self._loop.call_soon(call.account)  # which may end the call, so not within its handler
        if not self._reading:
            self._write_soon()

    def credit(self, call: H2Call, count: int) -> None:
        """Replenish a stream's window."""
        stream = self.h2.streams.get(call.stream_id)
        if stream is not None and stream.open and not self._closing:
            self.h2.increment_flow_control_window(count, call.stream_id)
            self._write_soon()

    def hold_bytes(self, count: int) -> bool:
        """Add to the bytes held by calls; return False if they exceed this connection's share."""
        self._held_bytes += count
        return self._server.held_bytes.take(count, self._held_bytes) or count <= 0

    def is_coming(self, call: H2Call) -> None:
        """Record that a call's message has begun, is expected or has to wait."""
        self._coming.append((self._loop.time(), call))

    def finished(self, call: H2Call, *, reset: bool) -> None:
        """Forget a call whose end is written; `reset` makes the peer stop sending."""
        if reset:
            self._reset(call.stream_id, ErrorCodes.NO_ERROR)
        self._drop(call.stream_id)

    # -- input from the peer -------------------------------------------------------------------

    def _request(self, event: Any) -> None:
        stream_id, headers = event.stream_id, event.headers
        fits = self._server.open_calls.take(1, 1 + len(self._calls))
        if self._refusing or not fits:
            self._server.open_calls.take(-1, 0)
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        call = H2Call(self, stream_id, longest_bytes=self._server.longest_bytes)
        self._calls[stream_id] = call
        named = dict(headers)
        begin = self._server.methods.get(named.get(b":path", b""))
        size_bytes = len(b"".join(chain.from_iterable(headers))) + 32 * len(headers)
        if size_bytes > HEADER_LIST_BYTES:
            call.end(Code.RESOURCE_EXHAUSTED, "the metadata is too long")
        elif named.get(b":method") != b"POST":
            call.end(Code.UNIMPLEMENTED, "a call must be a POST")
        elif not named.get(b"content-type", b"").startswith(b"application/grpc"):
            call.end(Code.UNIMPLEMENTED, "the content-type must be application/grpc")
        elif begin is None:
            call.end(Code.UNIMPLEMENTED, "Method not found!")
        else:
            try:
                call.handler = begin(call)
                self.is_coming(call)
            except Exception:  # noqa: BLE001 - ends only this call
                _LOG.exception("a call could not begin")
                call.end(Code.UNKNOWN, "internal error")

    def _reassure(self, now: float) -> None:
        """Extend the peers' timeouts for messages that arrive slowly or wait."""
        coming, end = self._coming, perf_counter() + self.turn_s
        while coming and perf_counter() < end:
            begun_at, call = coming[0]
            waits = call.waits
            if waits and now - begun_at <= SLOW_S:
                break
            coming.popleft()
            if waits:
                call.handler.reassure(late=self.next_turn is not None)

    def _data_event(self, event: Any) -> None:
        if (call := self._calls.get(event.stream_id)) is not None:
            call.data_received(event.data, event.flow_controlled_length)

    def _stream_ended(self, event: Any) -> None:
        if (call := self._calls.get(event.stream_id)) is not None:
            call.remote_ended()

    def _stream_reset(self, event: Any) -> None:
        call = self._drop(event.stream_id)
        if call is not None:
            call.lost()
        # Envoy resets each stream at its end, and when a client leaves before a response, but it
        # sends a message first. Calls that are reset without one are a flood.
        if call is not None and not call.heard and not self._resets.spend(self._loop.time()):
            raise FloodError("too many calls that are reset immediately")

    def _window(self, event: Any) -> None:
        if not event.stream_id:
            self._windows(event)
        elif (call := self._calls.get(event.stream_id)) and call in self.blocked:
            del self.blocked[call]
            self.wants_write(call)

    def _windows(self, _event: Any) -> None:
        """Retry all blocked calls after the connection's window or settings have changed."""
        blocked, self.blocked = self.blocked, {}
        for call in blocked:
            self.wants_write(call)

    def _settings(self, event: Any) -> None:
        if not self._greeted:
            self._greeted = True
            self._look()
        self._windows(event)

    def _ping_answered(self, event: Any) -> None:
        if event.ping_data == _DRAIN_PING and not self._refusing:
            self._refusing = True
            self._goaway(self.h2.highest_inbound_stream_id)

    # -- writing -------------------------------------------------------------------------------

    def _write_soon(self) -> None:
        if not self._reading and self._pumping is None and not self._closing:
            self._pumping = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Write as much as possible, one frame per call in turn."""
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = None
        transport = self._transport
        if self._closing or transport.is_closing():
            return
        self._reading = True  # anything handlers send now is written here
        end, self.h2.unsent_bytes = perf_counter() + self.turn_s, 0
        try:
            while self._ready and not self._unwritable:
                call = self._ready.popleft()
                call.ready = False
                if call.write():
                    call.ready = True
                    self._ready.append(call)
                if self.h2.unsent_bytes >= _WRITE_BYTES:
                    transport.write(self.h2.data_to_send())
                    self.h2.unsent_bytes = 0
                if perf_counter() >= end:
                    break
        except Exception:  # noqa: BLE001 - ends only this connection
            _LOG.exception("a connection failed")
            self._fail("an internal error", ErrorCodes.INTERNAL_ERROR)
            return
        finally:
            self._reading = False
        if data := self.h2.data_to_send():
            transport.write(data)
        if self._ready and not self._unwritable:
            self._write_soon()  # after the turns of other connections
        if self._unwritable and transport.get_write_buffer_size() > _FLOODED_BYTES:
            self._abort("the peer does not read its answers")
        elif not self._calls and (self._refusing or self.guard.leaving):
            # Envoy resets ended calls. A closed socket would respond by resetting the connection,
            # and Envoy would lose the answers that it has not read.
            self._close(transport.write_eof if transport.can_write_eof() else None)

    def _drop(self, stream_id: int) -> H2Call | None:
        call = self._calls.pop(stream_id, None)
        if call is not None:
            self._server.open_calls.take(-1, 0)
        return call

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        if (stream := self.h2.streams.get(stream_id)) is not None and not stream.closed:
            self.h2.reset_stream(stream_id, code)

    def _goaway(self, last_stream_id: int, code: int = 0) -> None:
        """Send GOAWAY after all frames already written.

        The library must not send it, since it would then accept no more frames.
        """
        gone = GoAwayFrame(0, last_stream_id=last_stream_id, error_code=code).serialize()
        self._transport.write(self.h2.data_to_send() + gone)

    # -- life ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Send GOAWAY to stop new streams; the connection closes when the open ones end."""
        if self._draining or self._closing:
            return
        self._draining = True
        self._goaway(_LAST_STREAM)
        self.h2.ping(_DRAIN_PING)  # the response shows that the peer has received the GOAWAY
        self._pump()

    def cut(self) -> None:
        """End all calls and close the connection."""
        if self._closing:
            return
        for stream_id, call in tuple(self._calls.items()):
            self._drop(stream_id)
            call.lost()
            self._reset(stream_id, ErrorCodes.CANCEL)
        self._goaway(self.h2.highest_inbound_stream_id)
        self._close()

    def _fail(self, why: str, code: ErrorCodes | None) -> None:
        self._server.complain(why)
        if self._transport.is_closing():
            return
        if code is None:
            self._transport.write(self.h2.data_to_send())
        else:
            self._goaway(self.h2.highest_inbound_stream_id, code)
        self._close()
        self._lose_calls()

    def _close(self, close: Callable[[], None] | None = None) -> None:
        """Close once everything is written, or after `LINGER_S` if the peer does not read."""
        self._closing = True
        (close or self._transport.close)()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self._transport.abort)

    def _look(self) -> None:
        """Ping a silent peer; abort its connection if it has not greeted or does not respond."""
        if not self._greeted:
            self._abort(f"the peer sent no preface within {GREETING_S:g} s")
        elif self._pinged and not self._heard:
            self._abort("the peer is silent")
        else:
            self._pinged = not self._heard
            if self._pinged:
                self.h2.ping(_PING)
                self._write_soon()
            self._heard = False
            if self._timer is not None:
                self._timer.cancel()
            wait_s = ALIVE_S if self._pinged else KEEPALIVE_S
            self._timer = self._loop.call_later(wait_s, self._look)

    def _abort(self, why: str) -> None:
        self._server.complain(why)
        self._transport.abort()


_REACTIONS: dict[type, Callable[[Connection, Any], None]] = {
    events.RequestReceived: Connection._request,
    events.DataReceived: Connection._data_event,
    events.StreamEnded: Connection._stream_ended,
    events.StreamReset: Connection._stream_reset,
    events.WindowUpdated: Connection._window,
    events.RemoteSettingsChanged: Connection._settings,
    events.PingAckReceived: Connection._ping_answered,
}
