"""The tuner in a running picker: made from the settings, shown and frozen.

    GET  /tuner         the weights, how the climb goes, and its last windows
    POST /tuner/freeze  serve the best weights found from now on

A climb on live traffic is an experiment on users. Its guard rails are the tuner's own (floors and
caps, a candidate that is stopped as soon as it hurts, one window's exposure) and this switch.
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
    """The tuner of one picker.

    Args:
        settings: settings of the climb, which is enabled.
        initial: the weights of the cost by name, to start from.
    """

    def __init__(self, settings: Tuning, initial: Mapping[str, float]) -> None:
        self._settings = settings
        self.tuner = Tuner(
            settings.climb,
            # A term that is switched off begins at its floor: a climb in logarithms knows no zero.
            {name: max(initial[name], floor) for name, (floor, _) in settings.bounds.items()},
        )

    def shown(self) -> dict[str, object]:
        """Return the export, with further fields for viewers."""
        return {
            "enabled": True,
            **self.tuner.export(),
            "sigma": self.tuner.sigma,
            "bounds": dict(self._settings.bounds),
            "window_requests": self._settings.climb.window,
            "under_way": self.tuner.under_way,
        }


def routes(keeper: TunerKeeper | None) -> list[Route]:
    """Return the routes for the admin port; without a tuner they report that it is off."""

    async def show(_request: Request) -> Response:
        return as_json(keeper.shown() if keeper else {"enabled": False})

    async def freeze(request: Request) -> Response:
        if keeper:
            keeper.tuner.freeze()
        return await show(request)

    return [Route("/tuner", show), Route("/tuner/freeze", freeze, methods=["POST"])]
