"""Explanations of past decisions over HTTP, and previews of new decisions.

    POST /explain          preview a decision; send the body and the headers of the request
                           (x-laar-tried-models, x-laar-task, x-laar-policy, ...)
    GET  /decisions        the latest, newest first; ?limit=, ?kind=, ?find=, ?until=
    GET  /decisions/<id>   a decision by the x-laar-decision-id of its response

Explaining uses the same stream machine and director as a request, so it shows the actual outcome,
including refusals. It reserves nothing and updates no learner. Context hooks are skipped: they
remember each request, and an explanation must not change later decisions.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from laar.core.cost import AIMS
from laar.datalayer.visits import aside
from laar.errors import RequestError, unknown
from laar.explain.decision_record import DecisionRecord
from laar.plugins.modes import kept_members
from laar.plugins.windows import Windows
from laar.protocol import headers as names
from laar.protocol.events import (
    Ask,
    Event,
    HasRead,
    Immediate,
    Read,
    RequestBody,
    RequestHeaders,
    Shape,
)
from laar.protocol.jsonscan import is_quick, member_spans
from laar.protocol.openai import ASIDE_BYTES, try_read
from laar.protocol.stream import Environment, Stream
from laar.request import Request as CoreRequest
from laar.server.admin.answers import as_json
from laar.server.admin.guard import body_of
from laar.slices import Slice
from laar.telemetry.decisions import DecisionMemory

if TYPE_CHECKING:
    from laar.server.picker import Picker

MAX_LIMIT = 200
MAX_BODIES = 4
"""Maximum number of bodies that are read at a time, since each may have `bodies.max_body_bytes`;
further requests wait."""
SLOW_S = 10.0
"""Seconds after which a complete response is considered slow: users give up at about that point."""
KINDS: Mapping[str, Callable[[DecisionMemory, DecisionRecord], bool]] = {
    "": lambda _memory, _of: True,
    "failed": lambda _memory, of: of.end is not None and not of.end.ok,
    "retried": lambda _memory, of: len(of.decision.tried) > 1,
    "slow": lambda _memory, of: of.end is not None and of.end.latency_s >= SLOW_S,
    "wrong": lambda memory, of: memory.outcome_of(of.decision.id) is False,
}
"""Kinds of decisions that can be searched for, each with its test."""
_FOR_THIS_PORT = frozenset({"authorization", "cookie"})
"""Headers that may hold the viewer's token; all others belong to the explained request."""
_PATHS = (
    ("messages", "/v1/chat/completions"),
    ("prompt", "/v1/completions"),
    ("input", "/v1/responses"),
)

POOL = ":pool"
"""Key of a request's pool among its headers; no real header has this name."""


def path_of(body: bytes) -> str:
    """Return the path for a body, based on members unique to its format; chat by default."""
    known = member_spans(body) or {}
    return next((path for member, path in _PATHS if member in known), _PATHS[0][1])


def explain(picker: Picker, request: CoreRequest) -> dict[str, object]:
    """Return the record of the decision that would be made now; reserve nothing.

    Its `aims` are the endpoints to which it would go with each aim. Its `too_long` tells whether
    the prompt, with its answer's limit, exceeds every candidate's context window. Raise
    `RequestError` if the request would be refused, with this status and reason.
    """
    now, memory = picker.clock(), picker.observability.memory
    director = picker.director
    decision = director.choose(request, now)
    shown = memory.explained(memory.record(decision))
    if (view := decision.view) is not None:
        shown["too_long"] = director.plugins.get(Windows).too_long(view)
        given = request.given or {}
        others = {aim: replace(request, given={**given, "aim": aim}) for aim in AIMS}
        shown["aims"] = {aim: director.choose(of, now).address for aim, of in others.items()}
    if picker.admission is not None:
        shown["sessions"] = picker.admission.explained(decision, now)
    return shown


def read_request(picker: Picker, body: bytes, headers: Mapping[str, str]) -> CoreRequest:
    """Read a request to explain; may run in another thread.

    Raise `RequestError` if it would be refused regardless of the fleet's state.

    Args:
        picker: its settings are used and, of its rules, the model rewrites.
        body: the request's body.
        headers: its headers, in lower case; ``:path`` is derived if missing, and `POOL`
            names the pool that the gateway sends the request to.
    """
    now, headers = picker.clock(), {":path": path_of(body), ":method": "POST", **headers}
    environment = Environment(
        settings=replace(picker.settings.stream, allow_policy_header=True),  # an operator asks
        new_id=lambda: "explain",
        rules=picker.rules,
        kept_members=kept_members(picker.settings.routing.asking.modes),
    )
    stream = Stream(environment)
    hint, pool = headers.get(names.SUBSET), headers.get(POOL, "")
    subset = None if hint is None else names.read_subset([hint])
    events: list[Event] = [
        RequestHeaders(headers, end=False, shape=Shape.GATEWAY, subset=subset, pool=pool),
        RequestBody(body, end=True),
    ]
    for event in events:
        for action in stream.receive(event, now):
            if isinstance(action, Read):
                events.append(HasRead(try_read(action.api, action.body)))
            if isinstance(action, Ask):
                return action.request
            if isinstance(action, Immediate):
                error = orjson.loads(action.body)["error"]
                raise RequestError(action.status, error["code"], error["message"])
    raise RequestError(400, "bad-request", "this request needs no decision")


def explain_routes(picker: Picker) -> list[Route]:
    """Return the routes for the admin port."""
    memory, max_bytes = picker.observability.memory, picker.settings.stream.max_body_bytes
    reading = asyncio.Semaphore(MAX_BODIES)

    async def preview(request: Request) -> Response:
        async with reading:
            body = await body_of(request, max_bytes)
            headers = {
                name: names.text_of(value.encode("latin-1"))  # decoded as on the data path
                for name, value in request.headers.items()
                if name not in _FOR_THIS_PORT
            }
            for name in (":path", POOL):
                if value := request.query_params.get(name[1:]):
                    headers[name] = value
            is_long = len(body) > ASIDE_BYTES or not is_quick(body)
            asked = await aside(is_long, read_request, picker, body, headers)
        return as_json(explain(picker, asked))

    async def decisions(request: Request) -> Response:
        wanted = request.query_params.get("limit", "20")
        if not wanted.isascii() or not wanted.isdigit() or not 1 <= int(wanted[:9]) <= MAX_LIMIT:
            raise RequestError(400, "bad-limit", f"limit must be 1 to {MAX_LIMIT}")
        kind, text = request.query_params.get("kind", ""), request.query_params.get("find", "")
        if kind not in KINDS:
            raise RequestError(400, "bad-kind", unknown("kind", kind, KINDS))
        until = request.query_params.get("until", "9" * 12)
        if not re.fullmatch("[0-9]{1,12}", until):
            raise RequestError(400, "bad-until", "until must be a time in Unix seconds")
        shown: list[dict[str, object]] = []
        slice_ = Slice()
        for record in list(memory.latest(len(memory))):
            found = record.time_s < int(until) + 1.0 and _contains(record, text.lower())
            if found and KINDS[kind](memory, record):
                shown.append(memory.explained(record))  # takes up to a millisecond
                if len(shown) == int(wanted):
                    break
            await slice_.step()
        return as_json({"decisions": shown, "remembered": len(memory)})

    async def decision(request: Request) -> Response:
        record = memory.get(request.path_params["id"])
        if record is None:
            raise RequestError(
                404,
                "unknown-decision",
                f"no decision has this id, or it is not among the last {len(memory)}; the "
                "decision log (decisions.log) keeps more",
            )
        return as_json(memory.explained(record))

    return [
        Route("/explain", preview, methods=["POST"]),
        Route("/decisions", decisions),
        Route("/decisions/{id}", decision),
    ]


def _contains(record: DecisionRecord, text: str) -> bool:
    """Return whether the text, in lower case, is in a name or id of a decision."""
    decision, request = record.decision, record.decision.request
    names = (decision.id, request.id, request.model, *decision.tried, decision.model)
    more = (record.specs[decision.slot].key, record.served, decision.reason, decision.policy)
    return not text or any(text in name.lower() for name in (*names, *more))
