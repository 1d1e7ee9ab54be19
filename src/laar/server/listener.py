"""Listening sockets."""

from __future__ import annotations

import socket


def listener(
    host: str, port: int, family: int, *, backlog: int | None = None, reuse_port: bool = False
) -> socket.socket:
    """Return a listening TCP socket; on ``::`` it accepts both families if the system supports it.

    Raises:
        OSError: the address cannot be listened on.
    """
    return socket.create_server(
        (host, port),
        family=family,
        backlog=backlog,
        reuse_port=reuse_port,
        dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
    )
