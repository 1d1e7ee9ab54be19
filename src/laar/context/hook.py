"""The hook: the server calls it with each request body, and it returns the body to forward.

    size -> parse -> scan -> (duplicates) -> align -> rewrite -> splice

Its state is bounded. It keeps hashes of the orders sent, hashes, positions and document names of
the changes to running conversations, and counts. It keeps no other text after a request's commit,
so none can leak into other requests; a duplicate note only refers to text earlier in the same
outgoing body.

A request never fails because of the hook. A body is forwarded unchanged, with a reason, if it is
not clearly a list of documents, takes too long or causes an error. The hook learns from a request
at `commit`, once an endpoint has accepted it; a missing commit costs at most one cache hit.

Tenants share only capacity: the scope (tenant, route, model, cache salt) is part of every hash and
has separate counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal

import orjson
import xxhash

from laar.context.aligner import OrderIndex
from laar.context.blocks import SkippedText
from laar.context.citations import can_restore, numbers_in
from laar.context.formats.jsonspans import splice
from laar.context.guard import GainGuard
from laar.context.memo import Memo, saved
from laar.context.recurrence import Recurrences
from laar.context.sequences import Sequences
from laar.context.settings import ContextSettings, Reason
from laar.context.turn import TurnPlan, TurnPlanner

MAX_BODY_BYTES = 2 << 20
"""Longest body examined, about 500,000 tokens."""

MAX_ADDED_MS = 4.0
"""Milliseconds after which the body is forwarded unchanged; checked between steps. 95 documents of
4 KB take 2 to 3 ms."""


class ContextHook:
    """Reorders and de-duplicates the documents in request bodies.

    Args:
        clock: returns monotonic seconds, for `MAX_ADDED_MS`; None means no time limit.
        memo: changes to running conversations, possibly shared by several hooks; None for its own.
        route: name of the route; requests of different routes never align with each other.
    """

    def __init__(
        self,
        settings: ContextSettings | None = None,
        *,
        clock: Callable[[], float] | None = None,
        memo: Memo | None = None,
        route: str = "",
    ) -> None:
        self._route = route
        self.settings = settings or ContextSettings()
        self.clock = clock or float  # always 0.0 without a clock
        self.index = OrderIndex()
        self.received = OrderIndex()
        """The orders as received, to estimate what would be cached without the hook."""
        self.memo = Memo() if memo is None else memo
        self.recurrences = Recurrences()
        self.sequences = Sequences()
        self.guard = GainGuard(share=self.settings.holdout_share)

    def apply(
        self,
        body: bytes,
        *,
        api: str,
        tenant: str,
        now: float,
        mode: Literal["observe", "on"],
        document: dict[str, Any] | None = None,
        restores: bool = False,
    ) -> TurnPlan:
        """Return the plan with the body to forward; never raise.

        Args:
            body: the complete body as received.
            api: ``chat``, ``messages``, ``responses`` or ``completions``.
            tenant: requests of different tenants never align with each other.
            now: seconds, monotonic.
            mode: ``observe`` does everything except change the body.
            document: the body as parsed by `orjson`, if available; halves the time for a body
                without documents.
            restores: whether the caller will restore the document numbers in the answer.
        """
        observe = mode == "observe"
        try:
            if len(body) > MAX_BODY_BYTES:
                raise SkippedText(Reason.TOO_LARGE)
            ends_at = self.clock() + MAX_ADDED_MS / 1e3
            try:
                parsed = orjson.loads(body) if document is None else document
            except orjson.JSONDecodeError:
                raise SkippedText(Reason.INVALID_JSON) from None
            if not isinstance(parsed, dict):
                raise SkippedText(Reason.NO_DOCUMENTS)
            turn = TurnPlanner(
                hook=self,
                scope=_scope(parsed, tenant, self._route, observe=observe),
                now=now,
                ends_at=ends_at,
                observes=observe,
                restores=restores and can_restore(parsed, api),
                numbers=cache(partial(numbers_in, body)),
            )
            plan = turn.plan(parsed, api, body)
            plan.body_bytes = len(body)
            if observe:
                plan.body, plan.memos, plan.numbers = body, [], {}
                plan.reason = Reason.OBSERVED if plan.edits else plan.reason
                return plan
            plan.body = splice(body, plan.edits) if plan.edits else body
            if plan.edits:
                plan.reason = Reason.DEDUPLICATED if plan.removed_bytes else Reason.REORDERED
            return plan
        except SkippedText as refused:
            return TurnPlan(body=body, reason=refused.reason)
        except orjson.JSONEncodeError:  # nested deeper than orjson can write
            return TurnPlan(body=body, reason=Reason.TOO_COMPLEX)
        except Exception:  # noqa: BLE001 (a bug may cost the gain, never the request)
            return TurnPlan(body=body, reason=Reason.ERROR)

    def note(self, plan: TurnPlan, now: float) -> None:
        """Remember the order of a request in flight, so that a burst of requests can share it.

        `commit` must follow, or `retract` if no endpoint accepts it.
        """
        for order in plan.orders:
            self.index.insert(plan.scope, order.seed, order.docs, now)
            self.received.place(order.seed, order.received, now, endpoint="")
        for docs in plan.received:
            self.sequences.observe(plan.scope, docs)
        plan.noted = True

    def retract(self, plan: TurnPlan) -> None:
        """Forget the order of a request that no endpoint accepted."""
        for order in plan.orders if plan.noted else ():
            self.index.retract(order.seed, order.docs)
            self.received.retract(order.seed, order.received)

    def commit(self, plan: TurnPlan, now: float, *, endpoint: str = "") -> None:
        """Remember a request that its endpoint has accepted (2xx response headers).

        Args:
            plan: the result of `apply`.
            now: seconds, monotonic.
            endpoint: name of the endpoint that accepted it, for `forget`.
        """
        if not plan.noted:
            self.note(plan, now)
        for order in plan.orders:
            self.index.place(order.seed, order.docs, now, endpoint=endpoint)
            self.received.place(order.seed, order.received, now, endpoint=endpoint)
        for key, what in plan.memos:
            self.memo.put(key, what)
            if what.changes and self.memo.tell is not None:
                self.memo.tell(key, saved(what))
        while plan.seen:  # the plan lives until the request ends
            self.recurrences.learn(plan.seen.pop())

    def forget(self, endpoint: str, *, before: float | None = None) -> None:
        """Forget the orders that an endpoint has evicted, as in `OrderIndex.forget`."""
        self.index.forget(endpoint, before=before)
        self.received.forget(endpoint, before=before)

    def record_usage(self, plan: TurnPlan, *, prompt_tokens: int, cached_tokens: int) -> None:
        """Record the cached tokens that an engine reports for a prompt with orders, for the guard.

        A prompt without orders is ignored, since only its older turns were changed.
        """
        if not plan.orders or prompt_tokens <= 0:
            return
        sizes = plan.predicted_bytes, plan.baseline_bytes
        expected, received = (size / plan.body_bytes for size in sizes)
        self.guard.record(
            plan.conversation,
            found=cached_tokens / prompt_tokens,
            expected=expected,
            ahead=None if plan.held_out else expected - received,
        )

    def stats(self) -> dict[str, int]:
        """Return the sizes of the index, the memo and the learned pieces."""
        return {
            "index_documents": len(self.index),
            "index_orders": len(self.index.orders),
            "index_scopes": len(self.index.affinities),
            "memo_entries": len(self.memo),
            "pieces": len(self.recurrences),
        }


def _scope(body: dict[str, object], tenant: str, route: str, *, observe: bool) -> int:
    """Return the hash of a request's scope; requests that are only observed have their own."""
    named = (body.get(name) for name in ("model", "cache_salt"))
    texts = [name if isinstance(name, str) else None for name in named]  # may be nested too deeply
    return xxhash.xxh3_64_intdigest(orjson.dumps([tenant, route, *texts, observe]))
