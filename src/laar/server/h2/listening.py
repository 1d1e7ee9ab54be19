"""The gRPC server: sockets, methods, connections and graceful stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from laar.datalayer.endpoints_file import split_address
from laar.datalayer.visits import occurs
from laar.server.h2.connection import GREETING_S, Connection
from laar.server.h2.guard import BufferShare
from laar.server.transport import MOST_STREAMS, Handler, listener

if TYPE_CHECKING:
    from laar.server.h2.call import H2Call
    from laar.server.tls import Identity

_LOG = logging.getLogger(__name__)

HELD_BYTES = 512 << 20
"""Maximum bytes of unfinished or unread messages. One connection may hold half: a dozen bodies."""

_BACKLOG = 1024
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_COMPLAIN_EVERY_S = 10.0


def _reporting(complain: Callable[[str], None]) -> type[ssl.SSLObject]:
    """Return an SSL class that reports failed handshakes, since the event loop hides the reason."""

    class Reporting(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except ssl.SSLWantReadError:
                raise
            except ssl.SSLError as error:
                complain(f"the TLS handshake failed: {error.reason or error}")
                raise

    return Reporting


class H2Server:
    """A gRPC server; `bind`, `start` and `stop` work as in grpc.aio.

    Args:
        longest_bytes: maximum length of a message.
        max_streams: maximum concurrent streams of a connection. All connections together may have
            twice as many, in fair shares.
        port: name of the port in the log.
    """

    def __init__(
        self, *, longest_bytes: int, max_streams: int = MOST_STREAMS, port: str = "ext_proc"
    ) -> None:
        self.longest_bytes = longest_bytes
        self.open_calls = BufferShare(2 * max_streams)
        self.held_bytes = BufferShare(HELD_BYTES)
        self.max_streams = max_streams
        self.methods: dict[bytes, Callable[[H2Call], Handler]] = {}
        self.connections: set[Connection] = set()
        self.stopping = False
        self._port = port
        self._sockets: list[socket.socket] = []
        self._tls: ssl.SSLContext | None = None
        self._listening: list[asyncio.Server] = []
        self._gone = asyncio.Event()
        self._complained_at = -math.inf

    # -- methods -------------------------------------------------------------------------------

    def add_method(self, service: str, name: str, begin: Callable[[H2Call], Handler]) -> None:
        """Serve a method; `begin` is called for each call."""
        self.methods[f"/{service}/{name}".encode()] = begin

    # -- life ----------------------------------------------------------------------------------

    def bind(self, address: str) -> int:
        """Bind to ``host:port``; return the port.

        Raise `OSError` if the address cannot be listened on.
        """
        host, port = split_address(address)
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, at in dict.fromkeys((family, str(at[0])) for family, *_, at in known):
            try:
                bound = listener(at, port, family, backlog=_BACKLOG)
            except OSError as error:
                if error.errno in _NOT_HERE and self._sockets:
                    continue  # `localhost` often has two families, one of which is disabled
                self._close()
                raise
            self._sockets.append(bound)
        return port

    async def start(self) -> None:
        """Accept connections; call it again to change the TLS context.

        The sockets stay open and keep their queue, so no client is refused meanwhile.
        """
        loop = asyncio.get_running_loop()
        before = self._listening
        self._listening = [
            await loop.create_server(
                lambda: Connection(self),
                sock=bound.dup(),
                ssl=self._tls,
                ssl_handshake_timeout=GREETING_S if self._tls else None,
                backlog=_BACKLOG,
            )
            for bound in self._sockets
        ]
        for listening in before:
            listening.close()

    async def use_tls(self, identity: Identity) -> None:
        """Use a new certificate for new connections."""
        context = identity.context()
        context.sslobject_class = _reporting(self.complain)
        self._tls = context
        if self._listening and not self.stopping:
            await self.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections and calls; cut open connections after the grace period."""
        self.stopping = True
        self._close()
        for connection in tuple(self.connections):
            connection.drain()
        if self.connections and grace_s > 0 and not await occurs(self._gone, grace_s):
            _LOG.info("cutting off %d connections", len(self.connections))
        for connection in tuple(self.connections):
            connection.cut()

    # -- for connections -----------------------------------------------------------------------

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        self.connections.discard(connection)
        if self.stopping and not self.connections:
            self._gone.set()

    def complain(self, why: str) -> None:
        """Log that a connection was closed because of its peer, at a limited rate."""
        now = asyncio.get_running_loop().time()
        if now >= self._complained_at + _COMPLAIN_EVERY_S:
            self._complained_at = now
            _LOG.warning("a connection to the %s port was closed: %s", self._port, why)

    def _close(self) -> None:
        for listening in self._listening:
            listening.close()
        for bound in self._sockets:
            bound.close()
        self._listening, self._sockets = [], []
