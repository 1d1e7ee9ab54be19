"""A fake engine, which serves a handler on a loopback port."""

from __future__ import annotations

from typing import Self

from aiohttp import web


class ServedEngine:
    """Serves every path with its `_handle` method within an ``async with`` block."""

    address: str
    """``host:port``, once started."""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_failure: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError
