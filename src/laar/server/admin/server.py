"""The admin port of a picker: its routes, protected by token and browser guard."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from laar.datalayer.endpoints_file import is_loopback, join_address, split_address
from laar.errors import RequestError, SettingError
from laar.server.admin.answers import as_json, refused
from laar.server.admin.app import AdminServer
from laar.server.admin.auth import AdminAuth, Attempts
from laar.server.admin.context import context_routes
from laar.server.admin.metrics import metrics_page
from laar.server.admin.outcomes import routes as outcome_routes
from laar.server.admin.tuner import routes as tuner_routes
from laar.server.browsers import BrowserGuard
from laar.server.health_service import HealthService
from laar.server.picker import Picker
from laar.server.ports import cannot_listen
from laar.server.token_file import reporter_tokens, viewers_token

TOKENS_S = 5.0
"""Seconds between checks of the token files; a replaced token stays valid for up to that long."""


class AdminPort:
    """The admin port of a picker.

    Raises:
        SettingError: a token file cannot be used.
    """

    def __init__(self, picker: Picker, health: HealthService) -> None:
        self._picker = picker
        self._health = health
        self._viewers_token = viewers_token(picker.settings)
        self.outcomes_tokens = reporter_tokens(picker.settings)
        self._auth: AdminAuth | None = None

    async def follow_tokens(self) -> None:
        """Reread the token files until cancelled; ignore unusable ones."""
        while True:
            await asyncio.sleep(TOKENS_S)
            try:
                viewers = await asyncio.to_thread(viewers_token, self._picker.settings)
                outcomes = await asyncio.to_thread(reporter_tokens, self._picker.settings)
            except SettingError as fault:
                self._picker.problems.report(
                    "token files", f"{fault}; the tokens that were read before stay in use"
                )
                continue
            self._picker.problems.report("token files", None)
            if self._auth is not None and self._auth.token != viewers:
                self._auth.token = viewers
                self._picker.observability.feed.ask_again()
            if self.outcomes_tokens is not None and outcomes is not None:
                self.outcomes_tokens.clear()
                self.outcomes_tokens.update(outcomes)

    def open(self, above: int = 0) -> AdminServer:
        """Bind the port; requests wait until the server runs.

        Args:
            above: added to the port, for workers after the first; port 0 stays 0.

        Raises:
            SettingError: the address cannot be listened on.
        """
        picker, listen = self._picker, self._picker.settings.listen
        host, port = split_address(listen.admin)
        port += above if port else 0

        async def metrics(_request: Request) -> Response:
            page = metrics_page(picker)
            return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

        async def alive(_request: Request) -> Response:
            return PlainTextResponse("ok\n")

        async def ready(_request: Request) -> Response:
            if self._health.ready:
                return PlainTextResponse("ready\n")
            return PlainTextResponse("not ready: no endpoint is known, or draining\n", 503)

        async def config(_request: Request) -> Response:
            return as_json(picker.reloader.shown() if picker.reloader else {})

        routes = [
            Route("/metrics", metrics),
            Route("/healthz", alive),
            Route("/readyz", ready),
            Route("/config", config),
            *outcome_routes(picker, self.outcomes_tokens),
            *picker.observability.routes(),
            *context_routes(picker),
            *tuner_routes(picker.tuner),
        ]
        app = Starlette(routes=routes, exception_handlers={RequestError: _refuse})
        others = not is_loopback(listen.admin)
        self._auth = AdminAuth(app, self._viewers_token, Attempts(picker.clock), others=others)
        guard = BrowserGuard(self._auth, [host, *listen.admin_hosts])
        try:
            return AdminServer(guard, host, port)
        except OSError:
            raise cannot_listen("admin", join_address(host, port)) from None


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return refused(error)
