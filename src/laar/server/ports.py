"""Create the ext_proc server, and bind the picker's ports."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from laar.datalayer.endpoints_file import join_address, split_address
from laar.errors import SettingError
from laar.server.extproc import SERVICE, ExternalProcessor
from laar.server.extproc.exchange import Exchange
from laar.server.transport import listener

if TYPE_CHECKING:
    from laar.server.h2 import H2Server
    from laar.settings.listening import Listen

_LONGEST_MESSAGE_BYTES = 64 << 20
_METADATA_BYTES = 1 << 20
"""Allowance for metadata in addition to a buffered body, which is one message."""


def server_of(**limits: Any) -> H2Server:
    """Return a server, not yet bound."""
    from laar.server.h2 import H2Server  # `laar check` needs no HTTP/2

    return H2Server(**limits)


def picking_server(processor: ExternalProcessor, max_body_bytes: int) -> H2Server:
    """Return the server for Envoys, not yet bound.

    Messages much longer than a body of `max_body_bytes` are rejected.
    """
    longest = max(_LONGEST_MESSAGE_BYTES, max_body_bytes + _METADATA_BYTES)
    server = server_of(longest_bytes=longest)
    server.add_method(SERVICE, "Process", partial(Exchange, processor))
    return server


def bind(server: H2Server, name: str, address: str) -> int:
    """Bind a server to the address ``host:port`` of the setting `listen.<name>`; return the port.

    Raise `SettingError` if the address cannot be bound.
    """
    try:
        return server.bind(address)
    except OSError:
        raise cannot_listen(name, address) from None


def cannot_listen(name: str, address: str) -> SettingError:
    """Return the error for the address in `listen.<name>`."""
    return SettingError(
        f"can't listen on {address}; is another picker running there, or is the address not this "
        "machine's? Stop it or choose another address (laar check --no-ports while it runs)",
        setting=f"listen.{name}",
    )


def ports_in_use(listen: Listen) -> list[SettingError]:
    """Return an error for each address that can't be bound now; leave no port open."""
    faults = []
    with contextlib.ExitStack() as held:  # hold all of them, to detect equal addresses
        for name in ("ext_proc", "health", "admin"):
            host, port = split_address(getattr(listen, name))
            try:
                family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
                held.enter_context(listener(host, port, family))
            except OSError:
                faults.append(cannot_listen(name, join_address(host, port)))
    return faults
