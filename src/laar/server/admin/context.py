"""The context hooks over HTTP.

    GET  /context               by route: expected and measured figures of the requests that the
                                hook ordered and of the control group; the guard's verdict
    POST /context/reset         forget the measurements and switch on again; ?route= for one
    POST /context/reorder       documents in, documents in a better order out, for programs that
                                build prompts themselves
    POST /context/evict         an engine no longer holds these requests: {"request_ids": [...]}

`laar.server.context_hooks` has the hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from laar.errors import RequestError, SettingError, unknown
from laar.server.admin.answers import as_json, first_fault
from laar.server.browsers import body_of
from laar.server.context_hooks import ContextHooks, Ordering
from laar.telemetry.context import Group

if TYPE_CHECKING:
    from laar.context.reorder import Reordered, Reorderer

MAX_CONTEXTS = 64
MAX_REORDER_BYTES = 2 << 20
"""Longest body of one call to reorder; some 10 ms of work."""

MAX_IDS = 1000
"""Request ids in one call; 5 ms."""

MAX_EVICT_BYTES = 256 << 10


class _Reorder(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    contexts: Annotated[
        list[Annotated[list[str], Field(max_length=1024)]], Field(max_length=MAX_CONTEXTS)
    ]
    conversation_ids: Annotated[list[str], Field(max_length=MAX_CONTEXTS)] | None = None
    before: Annotated[str, Field(max_length=1 << 20)] = ""
    tenant: Annotated[str, Field(max_length=256)] = ""
    deduplicate: bool = True


def context_routes(hooks: ContextHooks, clock: Callable[[], float]) -> list[Route]:
    """Return the routes for the admin port; `clock` gives monotonic seconds."""
    admin = _ContextAdmin(hooks, clock)
    return [
        Route("/context", admin.show),
        Route("/context/reset", admin.reset, methods=["POST"]),
        Route("/context/evict", admin.evict, methods=["POST"]),
        Route("/context/reorder", admin.reorder, methods=["POST"]),
    ]


class _ContextAdmin:
    """The hooks of all routes, and a reorderer for clients that build prompts themselves."""

    def __init__(self, hooks: ContextHooks, clock: Callable[[], float]) -> None:
        self._hooks = hooks
        self._clock = clock

    @cached_property
    def _reorderer(self) -> Reorderer:
        from laar.context.reorder import Reorderer  # most pickers are never asked

        return Reorderer()

    async def show(self, _request: Request) -> Response:
        """Return each route's hook, its guard and its counts."""
        return as_json({"routes": [_shown(ordering) for ordering in self._hooks.orderings]})

    async def reset(self, request: Request) -> Response:
        """Restart one route's hook, or all."""
        orderings, name = self._hooks.orderings, request.query_params.get("route")
        if not orderings:
            return JSONResponse({"error": "no route has the hook: set context.routes"}, 404)
        known = [o for o in orderings if name is None or o.rule.name == name]
        if not known:
            names = [ordering.rule.name for ordering in orderings]
            return JSONResponse({"error": unknown("route", name, names)}, 404)
        for ordering in known:
            self._hooks.reset(ordering)
        return JSONResponse({"reset": [ordering.rule.name for ordering in known]})

    async def evict(self, request: Request) -> JSONResponse:
        """Forget prompts that an engine has evicted, by the ids of their requests."""
        try:
            names = orjson.loads(await body_of(request, MAX_EVICT_BYTES))["request_ids"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            names = None
        except RequestError as error:
            return JSONResponse({"error": str(error)}, error.status)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return JSONResponse({"error": 'send {"request_ids": ["..."]}'}, 400)
        if len(names) > MAX_IDS:
            return JSONResponse({"error": f"{len(names)} ids; send {MAX_IDS} at most"}, 413)
        found = sum(self._hooks.evict(name) for name in names)
        return JSONResponse({"evicted": found, "not_found": len(names) - found})

    async def reorder(self, request: Request) -> JSONResponse:
        """Order the contexts of a batch."""
        try:
            asked = _Reorder.model_validate(orjson.loads(await body_of(request, MAX_REORDER_BYTES)))
            made = self._reordered(asked)
        except RequestError as error:
            return JSONResponse({"error": str(error)}, error.status)
        except ValidationError as fault:
            return JSONResponse({"error": first_fault(fault)}, 400)
        except (orjson.JSONDecodeError, SettingError) as fault:
            return JSONResponse({"error": str(fault)}, 400)
        return JSONResponse({"contexts": [asdict(one) for one in made]})

    def _reordered(self, asked: _Reorder) -> list[Reordered]:
        ids = asked.conversation_ids or [""] * len(asked.contexts)
        if len(ids) != len(asked.contexts):
            raise SettingError("send as many `conversation_ids` as `contexts`")
        now = self._clock()
        return [
            self._reorderer.reorder(
                context,
                now=now,
                conversation=conversation,
                before=asked.before,
                tenant=asked.tenant,
                deduplicate=asked.deduplicate,
            )
            for context, conversation in zip(asked.contexts, ids, strict=True)
        ]


def _shown(ordering: Ordering) -> dict[str, object]:
    from laar.context.guard import MIN_GAIN, MIN_REQUESTS

    rule, tally = ordering.rule, ordering.tally
    groups = tally.groups
    return {
        "name": rule.name,
        "path": rule.path,
        "models": rule.models,
        "mode": rule.mode,
        "opt_in": rule.opt_in,
        "guard": {
            "state": _guard_state(ordering),
            "holdout_share": rule.hook.holdout_share,
            "min_gain": MIN_GAIN,
            "requests_needed": MIN_REQUESTS,
            **_measured(ordering),
        },
        "requests": tally.reasons,
        "shapes": tally.shapes,
        "groups": {name: _group(group) for name, group in groups.items()},
        "memory": {
            name: count
            for name, count in ordering.hook.stats().items()
            if name.startswith(("index_", "memo_"))
        },
    }


def _measured(ordering: Ordering) -> dict[str, object]:
    """Gain and success rates that the guard has seen, and the state of de-duplication."""
    gain = ordering.hook.gains().get(ordering.rule.name)
    setting = ordering.rule.hook.dedup
    seen = gain.seen if gain else 0
    return {
        "requests_seen": seen,
        "gain": {
            "cached_share": gain.gain if gain and seen else None,
            "two_errors": 2 * gain.error if gain and seen else None,
        },
        "correct": gain.treated_correct if gain else None,
        "correct_as_received": gain.left_alone_correct if gain else None,
        "harm": gain.harm if gain else False,
        "dedup": (gain.dedup if gain else "trial") if setting == "auto" else setting,
    }


def _guard_state(ordering: Ordering) -> str:
    """`off` once it has switched itself off; `disabled` where nothing is held out."""
    if ordering.tally.is_off:
        return "off"
    return "watching" if ordering.rule.hook.holdout_share else "disabled"


def _group(group: Group) -> dict[str, object]:
    documents = group.document_bytes
    return {
        "eligible": group.eligible,
        "document_bytes": documents,
        "expected": {
            "hit_share": group.expected_bytes / documents if documents else None,
            "hit_share_as_received": group.received_bytes / documents if documents else None,
        },
        "measured": {
            "answers": group.cached_share.n,
            "cached_share": group.cached_share.mean if group.cached_share.n else None,
            "ttft_s": group.ttft_s.mean if group.ttft_s.n else None,
            "ttft_answers": group.ttft_s.n,
        },
    }
