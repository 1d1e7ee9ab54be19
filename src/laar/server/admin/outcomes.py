"""Outcomes over HTTP, and the state of the models.

    POST /outcomes  {"decision_id": "...", "correct": true}, or {"outcomes": [{...}, ...]}
    GET /models     evidence, c(m) in the artifact and as learned, characters per token

Reporting is idempotent: a decision counts once, however often it is reported. Reporters can shift
the routing (within the hourly cap), so a token can be required.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from laar.accuracy.reports import Verdict
from laar.core.director import Director
from laar.datalayer.endpoints_file import is_loopback
from laar.errors import RequestError, first_fault
from laar.server.admin.answers import as_json
from laar.server.admin.guard import body_of
from laar.server.learning import Learning
from laar.server.token_file import OUTCOMES, is_sent
from laar.slices import Slice

MAX_BATCH = 1000
"""Maximum number of outcomes per report. They take 20 ms, in slices between
which the event loop runs."""

MAX_BODY_BYTES = 256 << 10
"""Maximum size of a report's body; a full batch has about 150 bytes per outcome."""


class _Outcome(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    decision_id: Annotated[str, Field(min_length=1, max_length=128)]
    correct: bool


class _Batch(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    outcomes: Annotated[list[_Outcome], Field(max_length=MAX_BATCH)]


def routes(
    learning: Learning,
    director: Director,
    *,
    listen: str,
    token: Callable[[], str | None],
) -> list[Route]:
    """Return the routes for the admin port.

    Without a token, a port that other machines can reach accepts no reports.
    """
    open_to_others = token() is None and not is_loopback(listen)

    async def models(_request: Request) -> Response:
        judged, engines = director.table.judged, director.engines
        entries = await asyncio.to_thread(learning.models, judged, engines)
        return as_json({"models": entries})

    async def report(request: Request) -> Response:
        if open_to_others:
            raise RequestError(403, "no-token", f"{listen} is open to the network: set {OUTCOMES}")
        sent, needed = request.headers.get("authorization", ""), token()
        if needed is not None and not is_sent(needed, sent):
            raise RequestError(401, "no-token", "send the token as `Authorization: Bearer ...`")
        outcomes = _parsed(await body_of(request, MAX_BODY_BYTES))
        verdicts, now, slice_ = [], learning.clock(), Slice()
        for each in outcomes:
            verdict = learning.reports.report(each.decision_id, each.correct, now)
            verdicts.append(verdict)
            await slice_.step()
        accepted = sum(verdict in (Verdict.TAKEN, Verdict.PASSED) for verdict in verdicts)
        ignored = len(verdicts) - accepted
        return as_json({"accepted": accepted, "ignored": ignored, "verdicts": verdicts})

    return [Route("/models", models), Route("/outcomes", report, methods=["POST"])]


def _parsed(body: bytes) -> list[_Outcome]:
    try:
        document = orjson.loads(body)
        if isinstance(document, dict) and "outcomes" in document:
            return _Batch.model_validate(document).outcomes
        return [_Outcome.model_validate(document)]
    except ValidationError as fault:
        raise RequestError(400, "bad-request", first_fault(fault, "the body")) from None
    except orjson.JSONDecodeError as fault:
        raise RequestError(400, "bad-request", f"not JSON: {fault}") from None
