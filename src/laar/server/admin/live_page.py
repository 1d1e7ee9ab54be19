"""The live page: its files, and the data that it shows."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from importlib.resources import files

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from laar.flow.admission import Admission
from laar.server.admin.answers import as_json
from laar.telemetry.observability import Observability

_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/runbook": ("runbook.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/parts.js": ("parts.js", "text/javascript; charset=utf-8"),
}
_NUMPY = orjson.OPT_SERIALIZE_NUMPY
FRAME_S = 0.5
"""Seconds for which viewers share a frame: the page asks for one each second."""
_PAGE_HEADERS = {
    # Names on the page come from settings and clients. Even if one were not escaped, its markup
    # could not load or run anything.
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes(
    seen: Observability, gate: Admission | None, clock: Callable[[], float]
) -> list[Route]:
    """Return the routes for the admin port."""

    def view(shown: Callable[[float], object]) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that answers with what `shown` returns for the current time."""

        async def serve(_request: Request) -> Response:
            return as_json(shown(clock()))

        return serve

    newest, made_at = b"", -math.inf

    async def frame(_request: Request) -> Response:
        nonlocal newest, made_at
        if (now := clock()) - made_at >= FRAME_S:
            newest, made_at = orjson.dumps(seen.page.frame(now), option=_NUMPY), now
        return Response(newest, media_type="application/json")

    return [
        Route("/frame", frame),
        Route("/fleet", view(seen.page.fleet)),
        Route("/history", view(seen.history.curves)),
        Route("/sessions", view(lambda now: gate.shown(now) if gate else {})),
        *(Route(path, _file(*what)) for path, what in _PAGE.items()),
    ]


def _file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files("laar.server.admin") / "page" / name).read_bytes()

    async def serve(_request: Request) -> Response:
        return Response(content, media_type=media_type, headers=_PAGE_HEADERS)

    return serve
