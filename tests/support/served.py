"""A fake engine, which serves a handler on a loopback port."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Self

from aiohttp import web


class ServedEngine:
    """Serves every path with its `_handle` method within an ``async with`` block."""

    host = "127.0.0.1"
    port = 0
    """The actual port once started; 0 for any free one."""
    pair: tuple[Path, Path] | None = None
    """The certificate and key, if it speaks https."""
    shutdown_s = 0.1
    """Seconds that open requests have to end."""

    @property
    def address(self) -> str:
        """Return ``host:port``, with IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 << 20)
        self._route(app.router)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=self.shutdown_s)
        await self._runner.setup()
        context = None
        if self.pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.pair)
        await web.TCPSite(self._runner, self.host, self.port, ssl_context=context).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_failure: object) -> None:
        await self._runner.cleanup()

    def _route(self, router: web.UrlDispatcher) -> None:
        router.add_route("*", "/{path:.*}", self._handle)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError
