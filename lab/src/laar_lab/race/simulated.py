"""Run several simulated endpoints in one process, so that a small machine can run a fleet.

`python -m laar_lab.race.simulated SPEC.json`: a list of settings, one object for each endpoint.
Outages and other faults of one do not affect the others.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import uvloop

from laar_lab.sim.endpoint import EndpointSettings, SimulatedEndpoint, parse_fault


def _settings(faults: Iterable[str] = (), **given: Any) -> EndpointSettings:
    parsed = tuple(map(parse_fault, faults))
    return EndpointSettings(faults=parsed, allow_fault_header=True, **given)


async def serve(spec: Iterable[Mapping[str, Any]]) -> None:
    """Run the endpoints until cancelled."""
    async with AsyncExitStack() as stack:
        for seed, one in enumerate(spec):
            endpoint = SimulatedEndpoint(_settings(**one, seed=seed))
            await endpoint.start()
            stack.push_async_callback(endpoint.stop)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(orjson.loads(Path(sys.argv[1]).read_bytes())))
