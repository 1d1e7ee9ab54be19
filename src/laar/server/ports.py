"""The gRPC servers and their ports: options, binding, credentials."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from laar.datalayer import split_address
from laar.errors import SettingError
from laar.server.extproc import SERVICE, ExternalProcessor
from laar.server.extproc.over_h2 import ProcessCall
from laar.server.h2 import H2Server

if TYPE_CHECKING:
    from laar.server.tls import ServerTls
    from laar.settings import Listen

__all__ = [
    "Ports",
    "bind",
    "bind_picking",
    "cannot_listen",
    "health_server",
    "picking_server",
    "ports_in_use",
]

_LONGEST_MESSAGE_BYTES = 64 << 20
_METADATA_BYTES = 1 << 20
"""Beside a buffered body, which is one message."""

_INT32_MAX = 2**31 - 1
_ALONE = ("grpc.so_reuseport", 0)
"""Two pickers on one port would split the state, and probes would ask either."""

_TOGETHER = ("grpc.so_reuseport", 1)
"""Workers, which share their state."""

_STREAMS = 64
"""Streams on one connection to a worker. The kernel gives each connection to one worker, so a
client with many streams at a time must open several."""

_PICKING_OPTIONS = (
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),  # an Envoy of the gateway shape asks often if we are there
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
    # An Envoy whose machine has gone sends no reset; its requests would count for two hours.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # the name in newer gRPC
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(slots=True)
class Ports:
    """The ports in use; 0 before a port is bound."""

    ext_proc: int = 0
    health: int = 0
    admin: int = 0


def picking_server(
    processor: ExternalProcessor,
    transport: str,
    max_body_bytes: int,
    *,
    together: bool = False,
) -> grpc.aio.Server | H2Server:
    """The server that Envoys ask, not bound yet.

    Args:
        processor: serves the streams.
        transport: `listen.transport`.
        max_body_bytes: longest request body; longer messages than it needs are refused.
        together: other processes listen on the same port.
    """
    longest = min(max(_LONGEST_MESSAGE_BYTES, max_body_bytes + _METADATA_BYTES), _INT32_MAX)
    if transport == "h2":
        limit = {"max_streams": _STREAMS} if together else {}
        own = H2Server(longest_bytes=longest, together=together, **limit)
        own.add_method(SERVICE, "Process", lambda call: ProcessCall(processor, call))
        return own
    lengths = [(f"grpc.max_{way}_message_length", longest) for way in ("receive", "send")]
    ways = (_TOGETHER, ("grpc.max_concurrent_streams", _STREAMS)) if together else (_ALONE,)
    server = grpc.aio.server(options=(*_PICKING_OPTIONS, *ways, *lengths))
    server.add_generic_rpc_handlers((processor.handler(),))
    return server


async def bind_picking(
    server: grpc.aio.Server | H2Server, address: str, tls: ServerTls | None
) -> int:
    """Binds the server that Envoys ask; returns the port.

    Raises:
        SettingError: the address cannot be listened on.
    """
    if isinstance(server, grpc.aio.Server):
        return bind(server, "ext_proc", address, tls.credentials() if tls else None)
    if tls is not None:
        tls.on_change = server.use_tls
        await server.use_tls(tls.context())
    try:
        return server.bind(address)
    except OSError:
        raise cannot_listen("ext_proc", address) from None


def health_server(
    handlers: Iterable[grpc.GenericRpcHandler], *, together: bool = False
) -> grpc.aio.Server:
    """The server for probes and reported outcomes, not bound yet."""
    server = grpc.aio.server(options=[_TOGETHER if together else _ALONE])
    server.add_generic_rpc_handlers(tuple(handlers))
    return server


def bind(
    server: grpc.aio.Server,
    name: str,
    address: str,
    credentials: grpc.ServerCredentials | None = None,
) -> int:
    """Binds a server to an address; returns the port.

    Args:
        server: not started yet.
        name: of the setting below `listen`.
        address: ``host:port``; port 0 for a free one.
        credentials: for TLS; None for plain text.

    Raises:
        SettingError: the address cannot be listened on.
    """
    try:
        port = (
            server.add_secure_port(address, credentials)
            if credentials
            else server.add_insecure_port(address)
        )
    except RuntimeError:
        port = 0
    if not port:
        raise cannot_listen(name, address)
    return int(port)


def cannot_listen(name: str, address: str) -> SettingError:
    """The error for the address of `listen.<name>`."""
    return SettingError(
        f"can't listen on {address}; is another picker running there, or is the address not this "
        "machine's? Stop the other, or choose another address",
        setting=f"listen.{name}",
    )


def ports_in_use(listen: Listen) -> list[SettingError]:
    """The faults of addresses that could not be listened on now; leaves none open."""
    faults = []
    with contextlib.ExitStack() as held:  # together, since two may be the same
        for name in ("ext_proc", "health", "admin"):
            address = getattr(listen, name)
            host, port = split_address(address)
            try:
                family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
                held.enter_context(socket.create_server((host, port), family=family))
            except OSError:
                faults.append(cannot_listen(name, address))
    return faults
