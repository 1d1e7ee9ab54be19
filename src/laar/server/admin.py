"""The admin port: metrics, health and the effective settings over HTTP."""

from __future__ import annotations

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from laar.config import Settings
from laar.server.health import Health
from laar.telemetry.metrics import Metrics

__all__ = ["AdminServer", "admin_app"]


def admin_app(settings: Settings, metrics: Metrics, health: Health) -> Starlette:
    """The admin application."""

    async def page(_request: Request) -> Response:
        return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def alive(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request) -> Response:
        return (
            PlainTextResponse("ready\n")
            if health.ready
            else PlainTextResponse("not ready: no endpoint is known, or draining\n", 503)
        )

    async def config(_request: Request) -> Response:
        body = orjson.dumps(settings.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
        return Response(body, media_type="application/json")

    return Starlette(
        routes=[
            Route("/metrics", page),
            Route("/healthz", alive),
            Route("/readyz", ready),
            Route("/config", config),
        ]
    )


class AdminServer(uvicorn.Server):
    """uvicorn without signal handlers of its own: the runner stops it."""

    def install_signal_handlers(self) -> None:
        """The runner owns the signals."""
