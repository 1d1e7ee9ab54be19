"""Run several simulated endpoints in one process, so that a small machine can run a fleet.

python -m laar_lab.race.simulated --profile parallel --time-scale 0.5 --port 18001 --port 18002
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import AsyncExitStack

import uvloop

from laar_lab.sim.endpoint import EndpointSettings, SimulatedEndpoint, parse_fault

MODEL = "model"


async def serve(
    profile: str, time_scale: float, ports: list[int], fault: str, num_blocks: int | None
) -> None:
    """Run one endpoint on each port until cancelled; the first has the fault."""
    async with AsyncExitStack() as stack:
        for number, port in enumerate(ports):
            faults = (parse_fault(fault),) if fault and not number else ()
            endpoint = SimulatedEndpoint(
                EndpointSettings(
                    model=MODEL,
                    port=port,
                    profile=profile,
                    time_scale=time_scale,
                    num_blocks=num_blocks,
                    faults=faults,
                    allow_fault_header=True,
                    seed=number,
                )
            )
            await endpoint.start()
            stack.push_async_callback(endpoint.stop)
        await asyncio.Event().wait()


def main() -> None:
    """Parse the command line and run the endpoints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", required=True)
    parser.add_argument("--time-scale", type=float, required=True)
    parser.add_argument("--port", type=int, action="append", required=True)
    parser.add_argument("--num-blocks", type=int)
    parser.add_argument("--fault", default="")
    options = parser.parse_args()
    uvloop.run(
        serve(options.profile, options.time_scale, options.port, options.fault, options.num_blocks)
    )


if __name__ == "__main__":
    main()
