"""gRPC health for every service name that gateways and probes ask for.

Liveness says only that the process runs; most say whether requests can be served: some endpoint is
known and no stop was asked for. Watching works, so a kubelet's probes see a drain begin.

laar's own Envoys ask under another name, which stays well once it has been: without endpoints an
answer of ours says more than Envoy's. It ends with the drain, and Envoy then sends nothing new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from laar.protocol.agreed import PICKING_SERVICE

if TYPE_CHECKING:
    from laar.server.h2 import H2Server

__all__ = ["Health"]

_READY_NAMES = (
    "",
    "readiness",
    "inference-extension",
    "envoy.service.ext_proc.v3.ExternalProcessor",
)
_ALIVE_NAMES = ("liveness",)


class Health:
    """The health service's state; `add_to` mounts it on a server."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()
        self.ready = False

    def add_to(self, server: grpc.aio.Server | H2Server) -> None:
        """Mounts the service; the picker's own port and the health port both serve it."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def start(self) -> None:
        """Alive, and not ready until `set_ready`."""
        for name in _ALIVE_NAMES:
            await self._servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._servicer.set(PICKING_SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.set_ready(False)

    async def leave(self) -> None:
        """Not ready from now on, for new streams too."""
        await self._servicer.set(PICKING_SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.set_ready(False)

    async def set_ready(self, ready: bool) -> None:
        """Answers all probes and watches from now on."""
        self.ready = ready
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if ready
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in (*_READY_NAMES, *((PICKING_SERVICE,) if ready else ())):
            await self._servicer.set(name, status)
