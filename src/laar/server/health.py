"""gRPC health for every service name that gateways and probes ask for.

Liveness says only that the process runs; everything else says whether new streams are wanted: some
endpoint is known and nobody has asked us to stop. Watching works, so Envoy's active health checks
and a kubelet's probes see a drain begin.
"""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

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

    def add_to(self, server: grpc.aio.Server) -> None:
        """Mounts the service; the picker's own port and the health port both serve it."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def start(self) -> None:
        """Alive, and not ready until told."""
        for name in _ALIVE_NAMES:
            await self._servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)

    async def set_ready(self, ready: bool) -> None:
        """Tells everybody who asks or watches."""
        self.ready = ready
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if ready
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in _READY_NAMES:
            await self._servicer.set(name, status)
