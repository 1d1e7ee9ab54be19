"""gRPC health service for the service names that gateways and probes use.

Liveness reports only that the process runs. Most names report readiness: an endpoint is known and
no shutdown was requested. `Watch` is not implemented, as in the reference endpoint picker: Envoy
and kubelet call `Check`.

laar's own Envoys check a different name, which stays healthy once an endpoint has been known:
without endpoints, an error from laar is more informative than Envoy's. It becomes unhealthy when
the drain begins, and Envoy then sends no new streams.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from laar.protocol.agreed import PICKING_SERVICE
from laar.server.extproc import SERVICE
from laar.server.transport import Code, Handler
from laar.wire.health_pb2 import HealthCheckRequest, HealthCheckResponse

if TYPE_CHECKING:
    from laar.server.h2 import H2Call, H2Server

_SERVICE = "grpc.health.v1.Health"
_READY_NAMES = ("", "readiness", "inference-extension", SERVICE)


class HealthService:
    """The health service, served on the ext_proc port and on the health port.

    It is alive from the start, but not ready until `set_ready` says so; `obstacle` says why not.
    """

    def __init__(self) -> None:
        self.ready = self._has_been_ready = False
        self.obstacle = "laar is starting"
        self.own_check = False
        """Whether one of laar's own Envoys has made a health check."""

    def serve_on(self, server: H2Server) -> None:
        """Add the method to a server."""
        server.add_method(_SERVICE, "Check", partial(_Check, self))

    def leave(self) -> None:
        """Report not ready, including to laar's own Envoys."""
        self.ready = self._has_been_ready = False
        self.obstacle = "laar is draining"

    def set_ready(self, ready: bool) -> None:
        """Set the readiness."""
        self.ready, self.obstacle = ready, "no endpoint is known"
        self._has_been_ready = self._has_been_ready or ready

    def checked(self, name: str) -> HealthCheckResponse.ServingStatus | None:
        """Return the status for a check; None if the name is unknown."""
        self.own_check = self.own_check or name == PICKING_SERVICE
        known = dict.fromkeys(_READY_NAMES, self.ready)
        known |= {"liveness": True, PICKING_SERVICE: self._has_been_ready}
        if name not in known:
            return None
        return HealthCheckResponse.SERVING if known[name] else HealthCheckResponse.NOT_SERVING


class _Check(Handler):
    """A call to `Check`, with a single request message."""

    def __init__(self, health: HealthService, call: H2Call) -> None:
        self._health = health
        self._call = call

    def receive(self, message: bytes) -> None:
        try:
            name = HealthCheckRequest.FromString(message).service
        except DecodeError:
            self._call.end(Code.INVALID_ARGUMENT, "not a HealthCheckRequest")
            return
        if (status := self._health.checked(name)) is None:
            self._call.end(Code.NOT_FOUND, "unknown service")
        else:
            self._call.send(HealthCheckResponse(status=status).SerializeToString())
            self._call.end()

    def half_closed(self) -> None:
        self._call.end(Code.INTERNAL, "the method takes one message")
