"""The admin port of a picker: its routes, protected by token and browser guard."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from laar.datalayer.endpoints_file import is_loopback, join_address, split_address
from laar.errors import RequestError
from laar.faults import Fault
from laar.server.admin.answers import as_json, refused
from laar.server.admin.context import context_routes
from laar.server.admin.explain import explain_routes
from laar.server.admin.guard import AdminGuard
from laar.server.admin.live_page import page_routes
from laar.server.admin.metrics import metrics_page
from laar.server.admin.outcomes import routes as outcome_routes
from laar.server.admin.server import AdminServer
from laar.server.health_service import HealthService
from laar.server.picker import Picker
from laar.server.ports import cannot_listen
from laar.server.token_file import OUTCOMES, VIEWERS, token_in

TOKENS_S = 5.0
"""Seconds between checks of the token files, for which a replaced token may remain valid."""


class AdminPort:
    """The admin port of a picker; raise `SettingError` if a token file cannot be used."""

    def __init__(self, picker: Picker, health: HealthService) -> None:
        self._picker = picker
        settings = picker.settings
        viewers, self._outcomes_token = token_in(settings, VIEWERS), token_in(settings, OUTCOMES)
        app = Starlette(
            routes=[
                *own_routes(picker, health),
                *outcome_routes(
                    picker.learning,
                    picker.director,
                    listen=settings.listen.admin,
                    token=lambda: self._outcomes_token,
                ),
                *explain_routes(picker),
                *page_routes(picker.observability, picker.admission, picker.clock),
                *context_routes(picker.context),
            ],
            exception_handlers={RequestError: _refuse},
        )
        listen = settings.listen
        hosts = [split_address(listen.admin)[0], *listen.admin_hosts]
        self._guard = AdminGuard(app, viewers, hosts, others=not is_loopback(listen.admin))

    async def follow_tokens(self) -> None:
        """Reread the token files until cancelled; ignore unusable files."""
        picker = self._picker
        while True:
            await asyncio.sleep(TOKENS_S)
            viewers, outcomes = await asyncio.gather(
                asyncio.to_thread(token_in, picker.settings, VIEWERS),
                asyncio.to_thread(token_in, picker.settings, OUTCOMES),
                return_exceptions=True,
            )
            faults = [
                getattr(f, "what", str(f)) for f in (viewers, outcomes) if isinstance(f, Exception)
            ]
            problem = "; ".join([*faults, "the previous token stays in use"])
            picker.problems.report(Fault.TOKENS, problem if faults else None)
            if isinstance(viewers, str):
                self._guard.token = viewers
            if isinstance(outcomes, str):
                self._outcomes_token = outcomes

    def open(self) -> AdminServer:
        """Bind the port; requests wait until the server runs.

        Raise `SettingError` if the address cannot be bound.
        """
        host, port = split_address(self._picker.settings.listen.admin)
        try:
            return AdminServer(self._guard, host, port)
        except OSError:
            raise cannot_listen("admin", join_address(host, port)) from None


def own_routes(picker: Picker, health: HealthService) -> list[Route]:
    """Return the routes for metrics, health and settings."""

    async def metrics(request: Request) -> Response:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        page = metrics_page(picker, open_metrics="openmetrics" in media_type)
        # In a thread: counting 10,000 open files takes 9 ms.
        page += await asyncio.to_thread(encode, REGISTRY)
        return Response(page, headers={"content-type": media_type})

    async def alive(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request) -> Response:
        if health.ready:
            return PlainTextResponse("ready\n")
        return PlainTextResponse(f"not ready: {health.obstacle}\n", 503)

    async def config(_request: Request) -> Response:
        return as_json(picker.reloader.shown() if picker.reloader else {})

    return [
        Route("/metrics", metrics),
        Route("/healthz", alive),
        Route("/readyz", ready),
        Route("/config", config),
    ]


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return refused(error)
