"""Routes below ``/sim/`` that change the faults of a running simulated endpoint.

They exist only if the endpoint was started with permission to accept faults from outside
(`EndpointSettings.allow_fault_header`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from laar.errors import SettingError
from laar_lab.sim.endpoint.errors import ApiError
from laar_lab.sim.endpoint.faults import parse_fault
from laar_lab.sim.endpoint.serving import Serving

LONGEST_OUTAGE_S = 3600.0
_ANSWER_FIRST_S = 0.05
"""Delay of a requested outage, so that the request is answered first."""


class Controls:
    """The fault routes.

    Args:
        serving: the endpoint's engine, counters and faults.
        crash: starts an outage of some seconds, in which the engine may forget its cache.
    """

    def __init__(self, serving: Serving, crash: Callable[[float, bool], None]) -> None:
        self._serving = serving
        self._crash = crash

    def routes(self) -> list[Route]:
        """Return the routes for the application."""
        return [
            Route("/sim/faults", self._show, methods=["GET"]),
            Route("/sim/faults", self._set, methods=["PUT"]),
            Route("/sim/outage", self._begin_outage, methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        """Return the faults, requests seen and hit since they were set, and requests in flight."""
        book = self._serving.faults
        return _json(
            {
                "faults": [fault.kind for fault in book.faults],
                "requests": book.requests,
                "hit": book.hit,
                "active": self._serving.active,
            }
        )

    async def _set(self, request: Request) -> Response:
        try:
            texts = orjson.loads(await request.body())["faults"]
            faults = [parse_fault(text) for text in texts]
        except (ValueError, KeyError, TypeError, AttributeError, SettingError) as wrong:
            raise ApiError(400, f'write {{"faults": ["503@0.1", ...]}}: {wrong}') from None
        self._serving.set_faults(faults)
        return await self._show(request)

    async def _begin_outage(self, request: Request) -> Response:
        """Schedule an outage; answer before the connections are reset."""
        try:
            wanted = orjson.loads(await request.body())
            down_s, forget = float(wanted["seconds"]), bool(wanted.get("forget", True))
            if not 0 <= down_s <= LONGEST_OUTAGE_S:
                raise ValueError(f"seconds: 0 to {LONGEST_OUTAGE_S:g}")
        except (KeyError, TypeError, ValueError, AttributeError) as wrong:
            raise ApiError(400, f'write {{"seconds": 2, "forget": true}}: {wrong}') from None
        loop = asyncio.get_running_loop()
        loop.call_later(_ANSWER_FIRST_S, self._crash, down_s, forget)
        return _json({"seconds": down_s, "forget": forget})


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
