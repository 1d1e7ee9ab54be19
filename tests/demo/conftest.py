"""The real command, beside simulated endpoints in the test's own process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from laar.lab.endpoint import EndpointSettings, SimulatedEndpoint

MODELS = ("phi3-mini", "granite-3.1-8b")


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command came to."""

    status: int
    text: str


async def start(*arguments: str) -> asyncio.subprocess.Process:
    """Starts `laar`, its output in one pipe."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "laar.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
    )


async def laar(*arguments: object) -> Ran:
    """Runs `laar` to its end."""
    process = await start(*map(str, arguments))
    async with asyncio.timeout(100):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return Ran(process.returncode, output.decode())


@pytest.fixture
async def sim_endpoints() -> AsyncIterator[Callable[..., Awaitable[list[str]]]]:
    """Starts an endpoint for each of `MODELS`, under a second name as well; gives their URLs."""
    async with AsyncExitStack() as stack:

        async def begin(**given: Any) -> list[str]:
            urls = []
            for model in MODELS:
                endpoint = SimulatedEndpoint(
                    EndpointSettings(
                        model=model,
                        served_names=(model, "auto"),
                        fleet_model=model,
                        **{"time_scale": 0.001, **given},
                    )
                )
                await endpoint.start()
                stack.push_async_callback(endpoint.stop)
                urls.append(endpoint.url)
            return urls

        yield begin
