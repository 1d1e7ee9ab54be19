from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.noop_picker import NoopPicker, start

from laar.envoy.endpoints_file import write_eds
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar.fleet.membership import EndpointSpec
from support import RecordingUpstream, free_port
from support.bootstraps import rendered


class Fleet:
    """A real Envoy, the no-op picker and recording upstreams, for one test."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._eds = directory / "eds" / "endpoints.json"
        self._eds.parent.mkdir()
        self.seen: list[Any] = []  # all messages that reached the picker
        self.picker_port = free_port()

    async def upstreams(self, count: int, host: str = "127.0.0.1") -> list[RecordingUpstream]:
        return [
            await self._stack.enter_async_context(RecordingUpstream(host=host))
            for _ in range(count)
        ]

    def members(self, addresses: Sequence[str]) -> None:
        """List these as the cluster's endpoints."""
        self.specs(*(EndpointSpec(address=at, models=("m",)) for at in addresses))

    def specs(self, *specs: EndpointSpec) -> None:
        """List these as the cluster's endpoints."""
        write_eds(self._eds, specs)

    async def picker(self, endpoints: str, *, sample: bool = False) -> Any:
        """Start a picker that always answers ``endpoints``."""
        server = await start(
            NoopPicker(endpoints, sample=sample, observe=self.seen.append), self.picker_port
        )
        self._stack.push_async_callback(server.stop, None)
        return server

    async def picked(self, count: int) -> list[RecordingUpstream]:
        """Start upstreams, the cluster's endpoints, and a picker that picks the last of them."""
        upstreams = await self.upstreams(count)
        self.members([upstream.address for upstream in upstreams])
        await self.picker(upstreams[-1].address)
        return upstreams

    async def envoy(
        self,
        shape: Any,
        options: BootstrapOptions | None = None,
        *,
        picker_host: str = "127.0.0.1",
        more_pickers: str = "",
        edit: Callable[[Any], None] = lambda bootstrap: None,
    ) -> EnvoyProcess:
        """Start Envoy; ``edit`` may change the rendered bootstrap first."""
        bootstrap = rendered(
            shape,
            replace(
                options or BootstrapOptions(),
                picker=f"{picker_host}:{self.picker_port}{more_pickers}",
                eds_path=str(self._eds),
                listen_port=0,
                ready_port=0,
                admin_port=0,
            ),
        )
        edit(bootstrap)
        return await self._stack.enter_async_context(EnvoyProcess(bootstrap, self._directory))


@pytest.fixture
async def fleet(envoy_binary: Path, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(tmp_path, stack)
