"""Run simulated endpoints in one process: ``python -m bench.chaos.engines SPEC.json``.

They share an interpreter, since a small machine also has to run Envoy, pickers and clients. Each is
the same as `laar sim-endpoint --echo --fault-header`; an outage of one does not affect the others.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import orjson
import uvloop

from laar_lab.sim.endpoint import EndpointSettings, SimulatedEndpoint


async def serve(spec: list[dict[str, Any]]) -> None:
    """Run the endpoints until SIGINT or SIGTERM."""
    endpoints = []
    for seed, one in enumerate(spec):
        settings = EndpointSettings(
            model=str(one["model"]),
            served_names=tuple(one["names"]),
            port=int(one["port"]),
            time_scale=float(one["time_scale"]),
            echo=True,
            allow_fault_header=True,
            seed=seed,
        )
        endpoints.append(SimulatedEndpoint(settings))
        await endpoints[-1].start()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
    await asyncio.gather(*(endpoint.stop() for endpoint in endpoints))


if __name__ == "__main__":
    uvloop.run(serve(orjson.loads(Path(sys.argv[1]).read_bytes())))
