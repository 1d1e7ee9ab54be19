"""The tuner of a running picker: built from the settings, shown and frozen over HTTP.

    GET  /tuner         the weights, the progress of the climb, and its last windows
    POST /tuner/freeze  stop the climb and serve the best weights found

A climb on live traffic is an experiment on users. Its guard rails are those of the tuner (floors
and caps, early stop of a harmful candidate, exposure limited to one window) and this switch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from laar.server.admin.answers import as_json
from laar.settings import Tuning
from laar.tuning.tuner import Tuner

_LOG = logging.getLogger(__name__)


class TunerKeeper:
    """The tuner of one picker, which starts from the initial cost weights."""

    def __init__(self, settings: Tuning, initial: Mapping[str, float]) -> None:
        self._settings = settings
        self.tuner = Tuner(settings.climb, initial)

    def shown(self) -> dict[str, object]:
        """Return the export, with additional fields for viewers."""
        return {
            "enabled": True,
            **self.tuner.export(),
            "sigma": self.tuner.sigma,
            "bounds": dict(self._settings.bounds),
            "window_requests": self._settings.climb.window,
            "under_way": self.tuner.under_way,
        }


def routes(keeper: TunerKeeper | None) -> list[Route]:
    """Return the routes for the admin port; without a tuner they report it as disabled."""

    async def show(_request: Request) -> Response:
        return as_json(keeper.shown() if keeper else {"enabled": False})

    async def freeze(request: Request) -> Response:
        if keeper:
            keeper.tuner.freeze()
        return await show(request)

    return [Route("/tuner", show), Route("/tuner/freeze", freeze, methods=["POST"])]
