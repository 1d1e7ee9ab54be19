"""Start simulated endpoints in a test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import httpx
import orjson

from laar_lab.sim.endpoint import EndpointSettings, SimulatedEndpoint

if TYPE_CHECKING:
    import openai

FAST = 0.001  # a thousand times faster than the simulated engine


@dataclass(frozen=True)
class Running:
    """A listening endpoint, and clients for it."""

    endpoint: SimulatedEndpoint
    http: httpx.AsyncClient

    @cached_property
    def openai(self) -> openai.AsyncOpenAI:
        """Return OpenAI's own client; it is slow to create."""
        import openai  # this import takes a second, so only here

        url = self.endpoint.url + "/v1"
        return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=20)

    async def metric(self, name: str) -> float:
        """Return the sum over labels of the samples with this name."""
        page = (await self.http.get("/metrics")).text
        lines = [line for line in page.splitlines() if line.startswith(name + "{")]
        assert lines, name
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Running]:
    """An endpoint of the model `sim`, on a free port, stopped at the end."""
    given = {"model": "sim", "time_scale": FAST, "allow_fault_header": True, **settings}
    endpoint = SimulatedEndpoint(EndpointSettings(**given))
    await endpoint.start()
    try:
        async with httpx.AsyncClient(base_url=endpoint.url, timeout=20, verify=False) as http:
            sim = Running(endpoint, http)
            yield sim
            if "openai" in vars(sim):
                await sim.openai.close()
    finally:
        await endpoint.stop()


def events(body: str) -> list[Any]:
    """Return the data of a stream's events, in order; the last one stays the text `[DONE]`."""
    data = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else orjson.loads(item) for item in data]
