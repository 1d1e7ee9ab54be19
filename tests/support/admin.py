"""An admin port that serves a test's own application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from laar.server.admin.server import AdminServer
from support.waiting import eventually


@asynccontextmanager
async def admin_port(
    app: ASGIApp, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[AdminServer]:
    """Serve the application; port 0 is any free one."""
    server = AdminServer(app, host, port)
    running = asyncio.create_task(server.run_until_stopped())
    try:
        await eventually(lambda: server.started, what="the admin port")
        yield server
    finally:
        server.stop()
        await running
