"""gRPC health for every service name that gateways and probes ask for.

Liveness reports only that the process runs. Most names report whether requests can be served: some
endpoint is known and no stop was asked for. Watching works, so a kubelet's probes see a drain
begin.

laar's own Envoys ask under another name, which stays well once it has been: without endpoints an
answer of laar's says more than Envoy's. It ends with the drain, and Envoy then sends nothing new.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from google.protobuf.message import DecodeError

from laar.protocol.agreed import PICKING_SERVICE
from laar.server.h2 import CallError, Code, Service
from laar.wire.health_pb2 import HealthCheckRequest, HealthCheckResponse

_READY_NAMES = (
    "",
    "readiness",
    "inference-extension",
    "envoy.service.ext_proc.v3.ExternalProcessor",
)
_ALIVE_NAMES = ("liveness",)


class HealthService:
    """The health service; the picker's own port and the health port both serve it.

    Alive, and not ready until `set_ready`.
    """

    def __init__(self) -> None:
        self.ready = False
        self.laars_ask = False
        """Whether an Envoy of laar's has asked."""
        self.service = Service(
            "grpc.health.v1.Health", {"Check": self._check, "Watch": self._watch}
        )
        self._statuses = dict.fromkeys(_ALIVE_NAMES, HealthCheckResponse.SERVING)
        self._changed = asyncio.Event()
        self.leave()

    def leave(self) -> None:
        """Report not ready from now on, for new streams too."""
        self._statuses[PICKING_SERVICE] = HealthCheckResponse.NOT_SERVING
        self.set_ready(False)

    def set_ready(self, ready: bool) -> None:
        """Answer all probes and watches from now on."""
        self.ready = ready
        status = HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
        for name in (*_READY_NAMES, *((PICKING_SERVICE,) if ready else ())):
            self._statuses[name] = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _check(self, message: bytes) -> AsyncIterator[bytes]:
        name = _asked(message)
        self.laars_ask = self.laars_ask or name == PICKING_SERVICE
        status = self._statuses.get(name)
        if status is None:
            raise CallError(Code.NOT_FOUND, "unknown service")
        yield _answer(status)

    async def _watch(self, message: bytes) -> AsyncIterator[bytes]:
        name = _asked(message)
        sent = None
        while True:
            changed = self._changed
            status = self._statuses.get(name, HealthCheckResponse.SERVICE_UNKNOWN)
            if status != sent:
                sent = status
                yield _answer(status)
            await changed.wait()


def _asked(message: bytes) -> str:
    try:
        return HealthCheckRequest.FromString(message).service
    except DecodeError:
        raise CallError(Code.INVALID_ARGUMENT, "not a HealthCheckRequest") from None


def _answer(status: HealthCheckResponse.ServingStatus) -> bytes:
    return HealthCheckResponse(status=status).SerializeToString()
