"""The HTTP server of the admin port: uvicorn, with limits on connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from laar.datalayer.visits import occurs, until_look_s
from laar.server.transport import listener

MAX_CONNECTIONS = 256
"""Maximum number of connections; a process may open 1,024 files by default."""

MAX_OF_ADDRESS = 128
"""Maximum number of a client address's connections. It may keep them open by using them, so it must
leave some to others, such as Prometheus."""

WAIT_S = 10.0
"""Seconds between checks of a connection; a client has this long to send its first complete request
line and headers."""

_LOOKS = 3
"""Number of checks without progress after which a client is considered stalled. On a slow network
the system rarely accepts the next megabyte of a response."""

_TICK_S = 1.0
"""Seconds between updates of uvicorn's date header."""


class _BoundedProtocol(H11Protocol):
    """HTTP on a limited number of connections, each of which must make progress.

    Otherwise an attacker's idle connections would exhaust the file descriptors that Envoy needs.
    """

    _seen: tuple[object, int] | None = None
    _again = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless there are too many."""
        host, *_ = transport.get_extra_info("peername") or ("",)
        clients = (getattr(each, "client", None) for each in self.connections)
        own = sum(client is not None and client[0] == host for client in clients)
        if len(self.connections) >= MAX_CONNECTIONS or own >= MAX_OF_ADDRESS:
            self.transport = transport  # `connection_lost` needs it
            transport.abort()
            return
        super().connection_made(transport)
        self._look()

    def _look(self) -> None:
        """Abort a connection whose client neither sends its request nor reads its response."""
        if self not in self.connections:
            return
        is_idle = getattr(self.cycle, "response_complete", True)  # `cycle` is None at first
        waits = is_idle or self.flow.write_paused
        unread = self.transport.get_write_buffer_size()
        now = (self.cycle, unread) if waits else None
        self._again = self._again + 1 if waits and now == self._seen else 0
        self._seen = now
        if self._again >= (_LOOKS if unread else 1):
            self.transport.abort()  # closing would wait for the unread data
            return
        self.loop.call_later(WAIT_S, self._look)


class AdminServer(uvicorn.Server):
    """uvicorn on a socket bound in advance, without signal handlers: the runner stops it.

    Raise `OSError` if the address cannot be bound.
    """

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # It warns of each malformed request: a port scan must not fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._socket = listener(host, port, family)
        self.port: int = self._socket.getsockname()[1]
        self._stopped = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                http=_BoundedProtocol,
                timeout_graceful_shutdown=1,  # a slow client must not delay shutdown
            )
        )

    async def run_until_stopped(self) -> None:
        """Serve until `stop`."""
        await self.serve(sockets=[self._socket])

    async def main_loop(self) -> None:
        """Tick once a second; uvicorn's loop would wake an idle picker ten times as often."""
        while not await self.on_tick(0):
            await occurs(self._stopped, until_look_s(_TICK_S))

    def stop(self) -> None:
        """Ask the server to stop."""
        self.should_exit = True
        self._stopped.set()

    def close(self) -> None:
        """Release the port; needed only if it never served."""
        self._socket.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to the runner."""
        yield
