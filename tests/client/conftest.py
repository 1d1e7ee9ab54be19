"""Starts scripted chat endpoints on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from scripted_fleet import ScriptedFleet


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    """Starts scripted fleets; all stop with the test."""
    runners: list[web.AppRunner] = []

    async def start(script: Callable[[int, dict[str, Any]], Any], **given: Any) -> ScriptedFleet:
        fleet = ScriptedFleet(script, **given)
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", fleet.complete)
        app.router.add_get("/v1/models", fleet.list_models)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fleet.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return fleet

    yield start
    for runner in runners:
        await runner.cleanup()
