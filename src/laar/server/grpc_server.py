"""gRPC's own server as the transport of the ext_proc port; needs the extra `grpc`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from laar.server.extproc import ExternalProcessor
from laar.server.extproc.over_grpc import handler
from laar.server.h2 import CallError, Service
from laar.server.h2.coroutine_methods import Method

if TYPE_CHECKING:
    from laar.server.tls import Identity, ServerTls

_OPTIONS = (
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
_STATUS = {code.value[0]: code for code in grpc.StatusCode}


class GrpcServer:
    """A server for Envoys, with the methods of `H2Server` that a picker uses.

    Args:
        processor: serves the streams.
        longest_bytes: longest message that is taken.
        together: other processes listen on the same port.
    """

    def __init__(
        self,
        processor: ExternalProcessor,
        *,
        longest_bytes: int,
        together: bool,
    ) -> None:
        options: list[tuple[str, int]] = [*_OPTIONS, ("grpc.so_reuseport", int(together))]
        options += [
            (f"grpc.max_{way}_message_length", longest_bytes) for way in ("receive", "send")
        ]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((handler(processor),))
        self._credentials: grpc.ServerCredentials | None = None

    def add_service(self, service: Service) -> None:
        """Serves a service whose methods take one message."""
        methods = {
            name: grpc.unary_stream_rpc_method_handler(partial(_serve, method))
            for name, method in service.methods.items()
        }
        added = grpc.method_handlers_generic_handler(service.name, methods)
        self._server.add_generic_rpc_handlers((added,))

    def follow_tls(self, tls: ServerTls) -> None:
        """Shows the certificate in use, also after it was renewed; to be called before `bind`."""
        given = tls.shown

        def changed() -> grpc.ServerCertificateConfiguration | None:
            """Asked by gRPC's threads before each handshake; None is for no change."""
            nonlocal given
            shown = tls.shown
            if shown is given:
                return None
            given = shown
            return _configuration(shown)

        self._credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(given),
            changed,
            require_client_authentication=given.client_ca is not None,
        )

    def bind(self, address: str) -> int:
        """Binds to ``host:port``; returns the port.

        Raises:
            OSError: the address cannot be listened on.
        """
        try:
            port = (
                self._server.add_secure_port(address, self._credentials)
                if self._credentials
                else self._server.add_insecure_port(address)
            )
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(f"gRPC can't listen on {address}")
        return int(port)

    async def start(self) -> None:
        """Takes connections."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls; cuts the open ones after the grace."""
        await self._server.stop(grace_s)


async def _serve(
    method: Method, message: bytes, context: grpc.aio.ServicerContext[Any, Any]
) -> None:
    try:
        async for answer in method(message, context.invocation_metadata() or ()):
            await context.write(answer)
    except CallError as error:
        await context.abort(_STATUS[error.code], error.text)


def _configuration(shown: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(shown.key, shown.certificate)], root_certificates=shown.client_ca
    )
