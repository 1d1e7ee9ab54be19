"""The same handlers on `grpc.aio`: `listen.transport: grpc`, with the extra `laar[grpc]`.

gRPC's core reads messages in its own threads, so laar cannot take turns between connections, extend
the timeout of any message that arrives slowly but a call's first, or bound the bytes of all
unfinished messages together: each call may hold one message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from errno import EADDRINUSE
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from laar.server.transport import ALIVE_S, KEEPALIVE_S, MOST_STREAMS, SLOW_S, Call, Code, Handler

if TYPE_CHECKING:
    from laar.server.tls import Identity

_LOG = logging.getLogger(__name__)

_PING_EVERY_S = 0.2
"""Minimum seconds between pings of a peer without open calls; laar's own Envoys ping at .5 s."""
_METADATA_BYTES = 16 << 10
_CUT_S = 1.0
_MOST_STREAMS = 1000
"""Maximum streams of a connection, which bounds what a hostile peer costs; Envoys open more."""
_STATUSES = {status.value[0]: status for status in grpc.StatusCode}


class GrpcServer:
    """A server with the methods and arguments of `laar.server.h2.H2Server`.

    Args:
        longest_bytes: maximum length of a message.
        max_streams: half the maximum number of open calls.
        port: not used: gRPC reports failed connections to stderr itself.
    """

    def __init__(
        self, *, longest_bytes: int, max_streams: int = MOST_STREAMS, port: str = "ext_proc"
    ) -> None:
        options = {
            "grpc.max_receive_message_length": longest_bytes,
            "grpc.max_send_message_length": -1,
            "grpc.max_metadata_size": _METADATA_BYTES,
            "grpc.compression_enabled_algorithms_bitset": 1,  # none
            "grpc.max_concurrent_streams": min(max_streams, _MOST_STREAMS),
            "grpc.so_reuseport": 0,
            "grpc.keepalive_time_ms": int(KEEPALIVE_S * 1000),
            "grpc.keepalive_timeout_ms": int(ALIVE_S * 1000),
            "grpc.keepalive_permit_without_calls": 1,
            "grpc.http2.min_ping_interval_without_data_ms": int(_PING_EVERY_S * 1000),
        }
        self._server = grpc.aio.server(
            options=tuple(options.items()), maximum_concurrent_rpcs=2 * max_streams
        )
        self._identity: Identity | None = None
        self._is_shown = False  # gRPC has the identity
        self._calls: set[asyncio.Task[None]] = set()

    def add_method(self, service: str, name: str, begin: Callable[[Call], Handler]) -> None:
        """Serve a method; `begin` is called for each call."""
        # Unary methods too: on the wire they look like a stream of one message.
        method = grpc.stream_stream_rpc_method_handler(partial(self._serve, begin))
        handler = grpc.method_handlers_generic_handler(service, {name: method})
        self._server.add_generic_rpc_handlers((handler,))

    def bind(self, address: str) -> int:
        """Bind to ``host:port``; return the port.

        Raise `OSError` if the address cannot be listened on.
        """
        try:
            if (identity := self._identity) is None:
                return int(self._server.add_insecure_port(address))
            self._is_shown = True
            credentials = grpc.dynamic_ssl_server_credentials(
                _configuration(identity), self._renewed, identity.client_ca is not None
            )
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:
            raise OSError(EADDRINUSE, str(error)) from None

    async def start(self) -> None:
        """Accept connections."""
        await self._server.start()

    async def use_tls(self, identity: Identity) -> None:
        """Use TLS, or a new certificate for new connections; for the first time before `bind`."""
        self._identity, self._is_shown = identity, False

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections and calls; cut open calls after the grace period."""
        await self._server.stop(grace_s)
        if self._calls:  # cancelled, but not told yet
            await asyncio.wait(self._calls, timeout=_CUT_S)

    async def _serve(
        self, begin: Callable[[Call], Handler], _messages: object, context: Any
    ) -> None:
        if (task := asyncio.current_task()) is not None:
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        call = _Call(context)
        try:
            handler = begin(call)
        except Exception:  # noqa: BLE001 - ends only this call
            _LOG.exception("a call could not begin")
            await context.abort(grpc.StatusCode.UNKNOWN, "internal error")
        else:
            await call.serve(handler)

    def _renewed(self) -> Any:
        """Return the certificate if it is new. One of gRPC's threads asks before each handshake."""
        if self._identity is None or self._is_shown:
            return None
        self._is_shown = True
        return _configuration(self._identity)


def _configuration(identity: Identity) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(identity.key, identity.certificate)], root_certificates=identity.client_ca
    )


class _Call:
    """One call. One task reads and answers; the other writes what is sent at other times."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._out: deque[bytes] = deque()
        self._end: tuple[Code, str] | None = None
        self._is_busy = False  # in the handler; what it sends is written when it returns
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._slow: asyncio.Handle
        self._free = asyncio.Event()  # not on hold
        self._free.set()

    def metadata(self) -> list[tuple[str, str]]:
        return [
            (name, value if isinstance(value, str) else value.decode("latin-1"))
            for name, value in self._context.invocation_metadata()
        ]

    def send(self, message: bytes) -> None:
        if self._end is None:
            self._out.append(message)
            if not self._is_busy:
                self._wake.set()

    def end(self, code: Code = Code.OK, text: str = "") -> None:
        if self._end is None:
            self._end = code, text
            self._wake.set()

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    async def serve(self, handler: Handler) -> None:
        """Serve the call to its end, or until gRPC cancels this coroutine."""
        reading = asyncio.create_task(self._read(handler))
        self._slow = asyncio.get_running_loop().call_later(SLOW_S, handler.reassure)
        try:
            while self._end is None:
                await self._wake.wait()
                self._wake.clear()
                await self._write()
            code, text = self._end
            self._context.set_code(_STATUSES[code])
            self._context.set_details(text)
        finally:
            self._end = self._end or (Code.CANCELLED, "")
            reading.cancel()
            self._slow.cancel()
            handler.closed()

    async def _read(self, handler: Handler) -> None:
        """Pass the peer's messages to the handler, each once the last one's answers are written."""
        try:
            while self._end is None:
                message = await self._context.read()
                self._slow.cancel()
                await self._free.wait()
                if self._end is not None:
                    return
                self._is_busy = True
                if message is grpc.aio.EOF:
                    handler.half_closed()
                    return
                handler.receive(message)
                self._is_busy = False
                await self._write()
        except Exception:  # noqa: BLE001 - ends only this call
            _LOG.exception("a call failed")
            self.end(Code.UNKNOWN, "internal error")

    async def _write(self) -> None:
        async with self._writing:
            while self._out:
                await self._context.write(self._out.popleft())
