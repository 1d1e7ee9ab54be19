"""Simulated endpoints in the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from laar_command import MODELS

from laar_lab.sim.endpoint import EndpointSettings, SimulatedEndpoint


@pytest.fixture
async def sim_endpoints() -> AsyncIterator[Callable[..., Awaitable[list[str]]]]:
    """Start an endpoint for each of `MODELS`, with a second name each; return their URLs."""
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
