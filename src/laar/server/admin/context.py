"""The context hook at work: which route a request belongs to, the mode it gets, and who may look.

    GET  /context               by route: what was expected and what was measured, for the requests
                                that the hook ordered and for those left alone; the guard's verdict
    POST /context/reset         forget what was measured and switch on again; ?route= for one
    POST /context/reorder       documents in, documents in a better order out, for programs that
                                build prompts themselves
    POST /context/evict         an engine no longer holds these requests: {"request_ids": [...]}

`x-laar-context: off` always wins; `on` counts only where the route says `opt_in`. A body that a
header vouches for byte by byte is looked at by nobody. A fault here costs the gain and is counted
as `laar_degraded{what="context"}`; the body goes on as it came.

Tenants are told apart by the header that `flow.tenant_header` names, and share no order.
"""

from __future__ import annotations

import random
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from laar.context import ContextHook, HookResult, Mode, Reason, Receipt, Reorderer
from laar.core.request import Api
from laar.errors import RequestError, SettingError
from laar.protocol.answers import Usage
from laar.protocol.headers import Head
from laar.server.browsers import body_of
from laar.settings import Context, ContextRoute
from laar.telemetry.context import Group, RouteTally

__all__ = ["ContextRoutes"]

MAX_ANSWERED = 20_000
"""Decisions whose outcome may still be reported; some 300 bytes each, the oldest goes."""

MAX_CONTEXTS = 64
MAX_REORDER_BYTES = 2 << 20
"""Of one call to reorder; some 10 ms of work."""

MAX_IDS = 1000
"""Of requests in one call; 5 ms."""

MAX_EVICT_BYTES = 256 << 10

_SUFFIX = re.compile(r"-\d+(?:-[0-9a-f]{1,8})?$")  # which choice, and vLLM's own salt
_SIGNED = "signed"
_WHAT = "context"


class _Reorder(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    contexts: Annotated[
        list[Annotated[list[str], Field(max_length=1024)]], Field(max_length=MAX_CONTEXTS)
    ]
    conversation_ids: Annotated[list[str], Field(max_length=MAX_CONTEXTS)] | None = None
    before: Annotated[str, Field(max_length=1 << 20)] = ""
    tenant: Annotated[str, Field(max_length=256)] = ""
    deduplicate: bool = True


class _Ordering:
    """One route's rule, hook and tally."""

    def __init__(self, rule: ContextRoute, clock: Callable[[], float]) -> None:
        self.rule = rule
        self.hook = ContextHook(rule.hook, clock=clock)
        self.tally = RouteTally(rule.name, self.hook)
        self.told = False  # that it has switched itself off

    @property
    def is_on(self) -> bool:
        """Whether it looks at any body."""
        return self.rule.mode != "off" or self.rule.opt_in

    def is_about(self, path: str, model: str) -> bool:
        return path.startswith(self.rule.path) and (
            not self.rule.models or model in self.rule.models
        )

    def mode(self, wish: str, *, may_change: bool) -> Mode:
        """The mode of one request by what its client wishes."""
        wish = wish.lower()
        if wish == "off":
            return "off"
        mode: Mode = "on" if wish == "on" and self.rule.opt_in else self.rule.mode
        return "observe" if mode == "on" and not may_change else mode


class _Reworked:
    """One body's fate; implements `laar.protocol.ports.Rework`."""

    def __init__(
        self, routes: ContextRoutes, ordering: _Ordering, result: HookResult, group: str
    ) -> None:
        self._routes = routes
        self._ordering = ordering
        self._result = result
        self._group = group

    @property
    def body(self) -> bytes:
        """To forward."""
        return self._result.body

    def accepted(self, endpoint: str, request: str, now: float, *, decision: str = "") -> None:
        """Remembers what was sent, and where."""
        self._routes.guarded(self._committed, endpoint, request, now)
        receipt = self._result.receipt
        if decision and receipt is not None and receipt.orders:
            self._routes.awaits_outcome(decision, self._ordering, receipt)

    def _committed(self, endpoint: str, request: str, now: float) -> None:
        hook, receipt = self._ordering.hook, self._result.receipt
        hook.commit(receipt, now, endpoint=endpoint, request=request)

    def ended(self, ttft_s: float | None, usage: Usage) -> None:
        """Takes in what was measured."""
        self._routes.guarded(self._measured, ttft_s, usage)

    def _measured(self, ttft_s: float | None, usage: Usage) -> None:
        ordering, receipt = self._ordering, self._result.receipt
        if receipt is None or not receipt.orders:
            # Only older turns were touched. Their like in the control group leaves no receipt, so
            # that counting them would compare follow-ups with first questions.
            return
        prompt, cached = usage.prompt_tokens, usage.cached_tokens
        ordering.tally.groups[self._group].measured(ttft_s, prompt, cached)
        if self._group != "observed" and prompt and cached is not None:
            ordering.hook.record_usage(receipt, prompt_tokens=prompt, cached_tokens=cached)
            self._routes.judge(ordering)


class ContextRoutes:
    """The hooks of all routes; implements `laar.protocol.ports.BodyHook`.

    Args:
        settings: the routes.
        clock: monotonic seconds.
        rng: draws whose answers are read.
        degraded: where faults are counted.
        problem: told that a route switched itself off, or None once it is on again.
    """

    def __init__(
        self,
        settings: Context,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        degraded: Counter[str],
        problem: Callable[[str, str | None], None],
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._degraded = degraded
        self._problem = problem
        self._orderings: list[_Ordering] = []
        self._reorderer = Reorderer()
        self._answered: OrderedDict[str, tuple[_Ordering, Receipt]] = OrderedDict()
        self.use(settings)

    def use(self, settings: Context) -> None:
        """Goes by changed routes.

        A route whose hook is asked for as before keeps it, with its memory and its guard; bodies
        on their way are finished by the hook that they began with.
        """
        known = {ordering.rule.name: ordering for ordering in self._orderings}
        made = []
        for rule in settings.routes:  # one that is off keeps its requests from later ones
            ordering = known.get(rule.name)
            if ordering is not None and ordering.rule.hook == rule.hook:
                del known[rule.name]
            else:
                ordering = _Ordering(rule, self._clock)
            made.append((ordering, rule))
        for ordering, rule in made:  # nothing can fail from here on
            ordering.rule = rule
        self._orderings = [ordering for ordering, _ in made]
        for name, ordering in known.items():
            if ordering.told:
                self._problem(f"context {name}", None)

    @property
    def in_use(self) -> ContextRoutes | None:
        """Itself, or None when it may change no request."""
        return self if any(ordering.is_on for ordering in self._orderings) else None

    def tallies(self) -> Sequence[RouteTally]:
        """What is counted, by route."""
        return [ordering.tally for ordering in self._orderings]

    # -- a request -----------------------------------------------------------------------------

    def reads_answer(self, head: Head, now: float) -> bool:
        """Whether to read an answer of this path, whatever the model."""
        share = max(
            (
                o.rule.sample_answers
                for o in self._orderings
                if o.is_on and head.path.startswith(o.rule.path)
            ),
            default=0.0,
        )
        return self._rng.random() < share

    def apply(
        self, body: bytes, *, api: Api, model: str, head: Head, may_change: bool, now: float
    ) -> _Reworked | None:
        """Looks at a body; None when no route is about it, or nothing is to be remembered."""
        for ordering in self._orderings:
            if ordering.is_about(head.path, model):
                mode = ordering.mode(head.context, may_change=may_change)
                return self.guarded(self._look, ordering, body, api, head, mode, now)
        return None

    def _look(
        self, ordering: _Ordering, body: bytes, api: Api, head: Head, mode: Mode, now: float
    ) -> _Reworked | None:
        tally = ordering.tally
        if mode == "off":
            if head.context:
                tally.reasons[Reason.OFF.value] += 1
            return None
        if head.signed:
            tally.reasons[_SIGNED] += 1
            return None
        began = self._clock()
        result = ordering.hook.apply(
            body, api=api, tenant=head.tenant, route=ordering.rule.name, now=now, mode=mode
        )
        tally.added.observe(self._clock() - began)
        tally.reasons[result.reason.value] += 1
        tally.shapes.update(shape for shape, _ in result.shapes)
        if result.reason is Reason.ERROR:
            self._degraded[_WHAT] += 1
        receipt = result.receipt
        if receipt is None and result.body is body:
            return None
        held_out = receipt is not None and receipt.held_out
        group = "observed" if mode == "observe" else "control" if held_out else "hook"
        if receipt is not None and receipt.orders:
            tally.groups[group].decided(result)
        return _Reworked(self, ordering, result, group)

    def guarded(self, call: Callable[..., _Reworked | None], *args: object) -> _Reworked | None:
        """Calls, and counts a fault instead of passing it on."""
        try:
            return call(*args)
        except Exception:  # noqa: BLE001 - a hook's fault must not fail the request
            self._degraded[_WHAT] += 1
            return None

    def judge(self, ordering: _Ordering) -> None:
        """Says so, once, when a route has switched itself off."""
        tally = ordering.tally
        if ordering.told or not tally.is_off or ordering not in self._orderings:
            return
        ordering.told = True
        gain = ordering.hook.gains()[tally.name]
        if gain.harm:
            self._problem(
                f"context {tally.name}",
                "switched itself off: answers are worse where documents were moved. Correct "
                f"{gain.treated_correct:.3f} with the hook, {gain.left_alone_correct:.3f} without; "
                "POST /context/reset switches it on again",
            )
            return
        measured = {name: tally.groups[name].cached_share.mean for name in ("hook", "control")}
        self._problem(
            f"context {tally.name}",
            "switched itself off: reordering does not pay here. "
            f"Cached share of the prompt {measured['hook']:.3f} with the hook, "
            f"{measured['control']:.3f} without; POST /context/reset switches it on again",
        )

    def awaits_outcome(self, decision: str, ordering: _Ordering, receipt: Receipt) -> None:
        """Keeps what an outcome of this decision will be about."""
        self._answered[decision] = ordering, receipt
        if len(self._answered) > MAX_ANSWERED:
            self._answered.popitem(last=False)

    def reported(self, decision: str, correct: bool) -> None:
        """Takes in whether an answer was right, once for each decision."""
        known = self._answered.pop(decision, None)
        if known is not None:
            ordering, receipt = known
            ordering.hook.record_outcome(receipt, correct=correct)
            self.judge(ordering)

    # -- what engines tell of their caches -------------------------------------------------------

    def forget(self, endpoint: str) -> None:
        """An endpoint's cache was emptied, or it left: orders sent there lead nowhere."""
        for ordering in self._orderings:
            ordering.hook.forget(endpoint=endpoint)

    def set_capacity(self, cache_bytes: float | None) -> None:
        """Takes what the endpoints' caches hold together; None: not known."""
        for ordering in self._orderings:
            ordering.hook.set_capacity(cache_bytes)

    # -- the admin port ------------------------------------------------------------------------

    def routes(self) -> list[Route]:
        """What to mount."""
        return [
            Route("/context", self._show),
            Route("/context/reset", self._reset, methods=["POST"]),
            Route("/context/evict", self._evict, methods=["POST"]),
            Route("/context/reorder", self._reorder, methods=["POST"]),
        ]

    async def _show(self, _request: Request) -> Response:
        shown = {"routes": [_shown(ordering) for ordering in self._orderings]}
        return Response(
            orjson.dumps(shown, option=orjson.OPT_INDENT_2), media_type="application/json"
        )

    async def _reset(self, request: Request) -> Response:
        name = request.query_params.get("route")
        known = [o for o in self._orderings if name is None or o.rule.name == name]
        if not known:
            names = ", ".join(o.rule.name for o in self._orderings) or "none"
            return JSONResponse({"error": f"no route {name!r}; there are: {names}"}, 404)
        for ordering in known:
            ordering.hook.reset_guard(ordering.rule.name)
            ordering.tally.forget_groups()
            ordering.told = False
            self._problem(f"context {ordering.rule.name}", None)
        return JSONResponse({"reset": [ordering.rule.name for ordering in known]})

    async def _evict(self, request: Request) -> JSONResponse:
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
        found = sum(self._evicted(_ids(name)) for name in names)
        return JSONResponse({"evicted": found, "not_found": len(names) - found})

    async def _reorder(self, request: Request) -> JSONResponse:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_REORDER_BYTES:
                return JSONResponse({"error": f"send {MAX_REORDER_BYTES} bytes at most"}, 413)
        try:
            asked = _Reorder.model_validate(orjson.loads(bytes(body)))
            ids = asked.conversation_ids or [""] * len(asked.contexts)
            if len(ids) != len(asked.contexts):
                raise SettingError("send as many `conversation_ids` as `contexts`")
            now = self._clock()
            made = [
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
        except ValidationError as fault:
            first = fault.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            return JSONResponse({"error": f"{where}: {first['msg']}"}, 400)
        except (orjson.JSONDecodeError, SettingError) as fault:
            return JSONResponse({"error": str(fault)}, 400)
        return JSONResponse({"contexts": [asdict(one) for one in made]})

    def _evicted(self, ids: set[str]) -> bool:
        hooks = [ordering.hook for ordering in self._orderings]
        return sum(hook.forget(request=one) for hook in hooks for one in ids) > 0


def _ids(name: str) -> set[str]:
    """What we may have called a request: engines put a prefix before the id, a suffix behind."""
    bare = name.removeprefix("chatcmpl-").removeprefix("cmpl-").removeprefix("batch-")
    return {name, bare, _SUFFIX.sub("", bare)}


def _shown(ordering: _Ordering) -> dict[str, object]:
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
            "min_gain": rule.hook.min_gain,
            "requests_needed": rule.hook.guard_requests,
            "requests_seen": min(groups[name].cached_share.n for name in ("hook", "control")),
            "gain": _gain(groups["hook"], groups["control"]),
            **_correctness(ordering),
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


def _correctness(ordering: _Ordering) -> dict[str, object]:
    """What reported outcomes say, and what became of de-duplication."""
    gain = ordering.hook.gains().get(ordering.rule.name)
    setting = ordering.rule.hook.dedup
    return {
        "correct": gain.treated_correct if gain else None,
        "correct_as_received": gain.left_alone_correct if gain else None,
        "harm": gain.harm if gain else False,
        "dedup": (gain.dedup if gain else "trial") if setting == "auto" else setting,
    }


def _guard_state(ordering: _Ordering) -> str:
    """`off` once it has switched itself off; `disabled` where nothing is held out."""
    if ordering.tally.is_off:
        return "off"
    return "watching" if ordering.rule.hook.holdout_share else "disabled"


def _gain(hook: Group, control: Group) -> Mapping[str, float | None]:
    """Cached share that the hook adds, two standard errors of it, and TTFT it saves."""
    shares, times = (hook.cached_share, control.cached_share), (hook.ttft_s, control.ttft_s)
    known, timed = (all(mean.n for mean in pair) for pair in (shares, times))
    errors = sum(mean.error_squared() for mean in shares)
    return {
        "cached_share": shares[0].mean - shares[1].mean if known else None,
        "two_errors": 2 * errors**0.5 if known else None,
        "ttft_saved_s": times[1].mean - times[0].mean if timed else None,
    }


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
