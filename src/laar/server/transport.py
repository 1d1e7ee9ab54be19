"""What handlers of gRPC calls see of their transport (`laar.server.h2`)."""

from __future__ import annotations

import socket
from enum import IntEnum

MOST_STREAMS = 100_000
"""Maximum streams per connection, as in the circuit breaker of laar's bootstraps."""

KEEPALIVE_S, ALIVE_S = 30.0, 20.0
"""A peer that is silent for `KEEPALIVE_S` is pinged, and its connection is aborted after `ALIVE_S`
more. An Envoy whose machine died sends no reset: without pings its requests would count as in
flight for two hours."""


SLOW_S = 0.5
"""Seconds after which a peer's timeout is extended if its message arrives slowly or has to wait.
Without an answer Envoy gives up on the picker after 1.8 s."""


class Code(IntEnum):
    """The gRPC status codes used here."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class Handler:
    """Handler of one call. Its methods run on the event loop and must return soon.

    While it is `urgent`, the call's messages do not wait for earlier ones of other calls.
    """

    urgent = False

    def receive(self, message: bytes) -> None:
        """Handle a message."""

    def reassure(self, *, late: bool = False) -> None:
        """Extend the peer's timeout: its message is still arriving or, if `late`, waiting."""

    def half_closed(self) -> None:
        """Handle the end of the peer's messages; not called while the call is on hold."""

    def closed(self) -> None:
        """Handle the end of the call, for any reason. Called once, after all other methods."""


def listener(host: str, port: int, family: int, *, backlog: int | None = None) -> socket.socket:
    """Return a listening TCP socket; on ``::`` it accepts both families if the system supports it.

    Raise `OSError` if the address cannot be listened on.
    """
    return socket.create_server(
        (host, port),
        family=family,
        backlog=backlog,
        dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
    )
