"""The admin port of a picker: its routes, protected by token and browser guard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from laar.datalayer.endpoints_file import join_address, split_address
from laar.errors import SettingError
from laar.server.admin.app import AdminServer, admin_app
from laar.server.admin.auth import AdminAuth, Attempts
from laar.server.admin.context import context_routes
from laar.server.admin.metrics import metrics_page
from laar.server.admin.outcomes import routes as outcome_routes
from laar.server.admin.tuner import routes as tuner_routes
from laar.server.browsers import BrowserGuard, is_loopback
from laar.server.health_service import HealthService
from laar.server.picker import Picker
from laar.server.ports import cannot_listen
from laar.server.token_file import ReporterTokens, read_reporter_tokens, read_token_file
from laar.settings import Settings

TOKENS_S = 5.0
"""Seconds between checks of the token files; a replaced token stays valid for up to that long."""


class AdminPort:
    """The admin port of a picker; `shown` returns the content of `/config`.

    Raises:
        SettingError: a token file cannot be used.
    """

    def __init__(
        self,
        picker: Picker,
        health: HealthService,
        shown: Callable[[], Mapping[str, object]],
    ) -> None:
        self._picker = picker
        self._health = health
        self._shown = shown
        self._viewers_token, self.outcomes_tokens = _tokens(picker.settings)
        self._auth: AdminAuth | None = None

    async def follow_tokens(self) -> None:
        """Reread the token files until cancelled; ignore unusable ones."""
        while True:
            await asyncio.sleep(TOKENS_S)
            try:
                viewers, outcomes = await asyncio.to_thread(_tokens, self._picker.settings)
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
                self.outcomes_tokens.take(outcomes)

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
        parts = [
            *outcome_routes(picker, self.outcomes_tokens),
            *picker.observability.routes(),
            *context_routes(picker),
            *tuner_routes(picker.tuner),
        ]
        app = admin_app(self._shown, partial(metrics_page, picker), self._health, parts)
        others = not is_loopback(listen.admin)
        self._auth = AdminAuth(app, self._viewers_token, Attempts(picker.clock), others=others)
        guard = BrowserGuard(self._auth, [host, *listen.admin_hosts])
        try:
            return AdminServer(guard, host, port)
        except OSError:
            raise cannot_listen("admin", join_address(host, port)) from None


def _tokens(settings: Settings) -> tuple[str | None, ReporterTokens | None]:
    """Read the tokens of viewers and of reporters."""
    viewers = read_token_file(settings.decisions.viewers_token_file, "decisions.viewers_token_file")
    outcomes = read_reporter_tokens(
        settings.accuracy.outcomes_token_file, "accuracy.outcomes_token_file"
    )
    return viewers, outcomes
