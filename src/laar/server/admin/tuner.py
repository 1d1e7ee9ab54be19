"""The tuner of a running picker, shown and frozen over HTTP.

    GET  /tuner         the weights, the progress of the climb, and its last windows
    POST /tuner/freeze  stop the climb and serve the best weights found

A climb on live traffic is an experiment on users. Its guard rails are the tuner's own (floors and
caps, early stop of a harmful candidate, exposure limited to one window) and this switch.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from laar.server.admin.answers import as_json
from laar.tuning.tuner import Tuner


def routes(tuner: Tuner | None) -> list[Route]:
    """Return the routes for the admin port; without a tuner they report it as disabled."""

    async def show(_request: Request) -> Response:
        if tuner is None:
            return as_json({"enabled": False})
        more = {
            "sigma": tuner.sigma,
            "bounds": dict(tuner.settings.bounds),
            "window_requests": tuner.settings.window,
            "under_way": tuner.under_way,
        }
        return as_json({"enabled": True, **tuner.export(), **more})

    async def freeze(request: Request) -> Response:
        if tuner:
            tuner.freeze()
        return await show(request)

    return [Route("/tuner", show), Route("/tuner/freeze", freeze, methods=["POST"])]
