"""The admin port of one picker: its routes, behind the token and the browser guard."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from laar.datalayer import split_address
from laar.server.admin.app import AdminServer, admin_app
from laar.server.admin.auth import AdminAuth, Attempts
from laar.server.admin.context import context_routes
from laar.server.admin.outcomes import routes as outcome_routes
from laar.server.admin.tuner import routes as tuner_routes
from laar.server.browsers import BrowserGuard, is_loopback
from laar.server.health_service import HealthService
from laar.server.picker import Picker
from laar.server.ports import cannot_listen
from laar.server.token_file import ReporterTokens, read_token_file

__all__ = ["AdminPort"]


class AdminPort:
    """The admin port of a picker.

    Args:
        picker: the picker to show.
        health: its health.
        shown: makes the document of `/config`.
        outcomes_tokens: tokens that reported outcomes need; None where they need none.

    Raises:
        SettingError: the viewers' token cannot be read.
    """

    def __init__(
        self,
        picker: Picker,
        health: HealthService,
        shown: Callable[[], Mapping[str, object]],
        outcomes_tokens: ReporterTokens | None,
    ) -> None:
        self._picker = picker
        self._health = health
        self._shown = shown
        self._outcomes_tokens = outcomes_tokens
        self._viewers_token = read_token_file(
            picker.settings.decisions.viewers_token_file, "decisions.viewers_token_file"
        )

    def open(self, above: int = 0) -> AdminServer:
        """Binds the port; requests wait until the server runs.

        Args:
            above: added to the port, for workers beside the first; a free port stays one.

        Raises:
            SettingError: the address cannot be listened on.
        """
        picker, listen = self._picker, self._picker.settings.listen
        host, port = split_address(listen.admin)
        port += above if port else 0
        attempts = Attempts(picker.clock)
        parts = [
            *outcome_routes(
                picker.learning,
                picker.table,
                clock=picker.clock,
                tokens=self._outcomes_tokens,
                listen=listen.admin,
                attempts=attempts,
                told=picker.context.reported,
            ),
            *picker.observability.routes(),
            *context_routes(picker.context, picker.clock),
            *tuner_routes(picker.tuner),
        ]
        app = admin_app(self._shown, picker.metrics, self._health, parts)
        others = not is_loopback(listen.admin)
        auth = AdminAuth(app, self._viewers_token, attempts, others=others)
        guard = BrowserGuard(auth, [host, *listen.admin_hosts])
        try:
            return AdminServer(guard, host, port)
        except OSError:
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise cannot_listen("admin", shown) from None
