"""The context hooks of a picker: choose a request's route and mode, and record the measured gain.

Connects `laar.context.hook.ContextHook`, one per route in the settings, to the streams.

A body whose request has `x-laar-context: off`, or that a header signs, is left unchanged. An error
here costs only the gain: it is counted as `laar_degraded_total{what="context"}`, and the body is
forwarded unchanged.

Tenants are identified by the header in `flow.tenant_header`, and never share orders.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from laar.context.settings import Mode, Reason
from laar.core.decision import Completion
from laar.faults import Fault
from laar.protocol.headers import Head
from laar.protocol.ports import Restorer
from laar.request import Api
from laar.settings import Settings
from laar.settings.context import ContextRoute
from laar.telemetry.problems import Problems

if TYPE_CHECKING:
    from laar.context.memo import Memo
    from laar.context.turn import TurnPlan
    from laar.sharing.sharing import Sharing

_WHAT = "context"


class Ordering:
    """A route with its rule, its hook and its counters, as shown on two pages."""

    def __init__(self, rule: ContextRoute, clock: Callable[[], float], memo: Memo) -> None:
        from laar.context.hook import ContextHook  # imported lazily: most pickers have no route

        self.rule = rule
        self.hook = ContextHook(rule.hook, clock=clock, memo=memo, route=rule.name)
        self.reasons: Counter[str] = Counter()
        self.shapes: Counter[str] = Counter()
        self.eligible = 0  # requests with documents
        self.document_bytes = 0
        self.expected_bytes = 0
        """Document bytes expected to be cached with the hook's order."""
        self.received_bytes = 0
        """Document bytes expected to be cached with the received order."""

    @property
    def is_off(self) -> bool:
        """Return whether the hook has disabled itself for the route."""
        return self.hook.guard.off

    def mode(self, head: Head, *, may_change: bool) -> Mode:
        """Return the mode of a request; count it if one of its headers excludes it."""
        mode: Mode = self.rule.mode
        if mode == "off":
            return "off"
        if head.context.lower() == "off":
            self.reasons[Reason.OFF.value] += 1
            return "off"
        if head.signed:
            self.reasons["signed"] += 1
            return "off"
        return "observe" if mode == "on" and not may_change else mode

    def count(self, plan: TurnPlan) -> None:
        """Count a request's plan."""
        self.reasons[plan.reason.value] += 1
        self.shapes.update(shape for shape, _ in plan.shapes)
        if plan.orders:
            self.eligible += 1
            self.document_bytes += plan.document_bytes
            self.expected_bytes += plan.predicted_bytes
            self.received_bytes += plan.baseline_bytes


class _Reworked:
    """A body processed by a hook; implements `laar.protocol.ports.Rework`."""

    def __init__(
        self, hooks: ContextHooks, ordering: Ordering, plan: TurnPlan, *, observes: bool
    ) -> None:
        self._hooks = hooks
        self._ordering = ordering
        self._plan = plan
        self._observes = observes
        self.body = plan.body
        self.renames = bool(plan.numbers)

    def restorer(self, *, events: bool, encoded: bool) -> Restorer | None:
        """Return a restorer of numbers, if needed; after a compressed answer, stop using ids."""
        if not self.renames:
            return None
        if encoded:
            self._hooks.may_restore = False
            return None
        from laar.context.citations import Citations  # imported lazily, like the hook

        return Citations(self._plan.numbers, events=events).restored

    def refused(self) -> None:
        self._hooks.after(partial(self._ordering.hook.retract, self._plan))

    def accepted(self, endpoint: str, now: float) -> None:
        """Record that `endpoint` accepted the body."""
        commit = self._ordering.hook.commit
        self._hooks.after(partial(commit, self._plan, now, endpoint=endpoint))

    def ended(self, end: Completion) -> None:
        """Record the measured cached tokens."""
        self._hooks.shows_answers |= end.ttft_s is not None
        if self._plan.orders and not self._observes and end.cached_tokens is not None:
            record = partial(self._ordering.hook.record_usage, self._plan)
            tokens = {"prompt_tokens": end.prompt_tokens or 0, "cached_tokens": end.cached_tokens}
            self._hooks.after(partial(record, **tokens))
            self._hooks.after(partial(self._hooks.judge, self._ordering))


class ContextHooks:
    """The hooks of all routes of a picker; implements `laar.protocol.ports.BodyHook`.

    Args:
        problems: receives routes that have switched themselves off.
        faults: counts the errors of hooks.
        sharing: passes orders to other pickers; None keeps them here.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float],
        problems: Problems,
        faults: Counter[str],
        sharing: Sharing | None,
    ) -> None:
        self._clock = clock
        self._problems = problems
        self._faults = faults
        self._sharing = sharing
        self.orderings: list[Ordering] = []
        """The routes in the order of the settings."""
        self.shows_answers = False
        """Whether Envoy has passed a requested response to the picker."""
        self.may_restore = True
        """Whether numbers can be restored: False after a compressed response."""
        self.later: Callable[[Callable[[], None]], object] = lambda call: call()
        # Calls that learn from requests, deferred within an iteration of the event loop.
        self._due: deque[Callable[[], None]] = deque()
        self.apply_settings(settings)

    def apply_settings(self, settings: Settings) -> None:
        """Apply new routes.

        A route with unchanged hook settings keeps its hook, including memory and guard. Running
        conversations keep their orders. Bodies in flight stay with the hook that processed them.
        """
        known = {ordering.rule.name: ordering for ordering in self.orderings}
        made = []
        for rule in settings.context.routes:  # a route that is off still claims its requests
            ordering = known.get(rule.name)
            if ordering is not None and ordering.rule.hook == rule.hook:
                del known[rule.name]
            else:
                ordering = Ordering(rule, self._clock, self._memo)
            made.append((ordering, rule))
        for ordering, rule in made:  # nothing can fail from here on
            ordering.rule = rule
        self.orderings = [ordering for ordering, _ in made]
        for name in known:
            self._problems.report(Fault.CONTEXT, None, name)

    @cached_property
    def _memo(self) -> Memo:
        """Running conversations on all routes."""
        from laar.context.memo import Memo
        from laar.sharing.records import Moved

        if (sharing := self._sharing) is None:  # it keeps orders for restarts and other pickers
            return Memo()
        sharing.orders = memo = Memo(
            lambda: sharing.key, lambda *changed: sharing.outbox.add(Moved(*changed))
        )
        return memo

    @property
    def in_use(self) -> ContextHooks | None:
        """Return this object, or None if no route processes any body."""
        is_on = any(each.rule.mode != "off" for each in self.orderings)
        return self if is_on else None

    # -- a request -----------------------------------------------------------------------------

    def apply(
        self,
        body: bytes,
        *,
        api: Api,
        model: str,
        head: Head,
        may_change: bool,
        shows_answer: bool,
        now: float,
        document: dict[str, Any] | None = None,
    ) -> _Reworked | None:
        """Return the processed body; None if no hook applies or there is nothing to remember."""
        for ordering in self.orderings:
            rule = ordering.rule
            if head.path.startswith(rule.path) and (not rule.models or model in rule.models):
                break
        else:
            return None
        if (mode := ordering.mode(head, may_change=may_change)) == "off":
            return None
        restores = (shows_answer or self.shows_answers) and self.may_restore
        self._catch_up()
        plan = ordering.hook.apply(
            body,
            api=api,
            tenant=head.tenant,
            now=now,
            mode=mode,
            document=document,
            restores=restores,
        )
        ordering.count(plan)
        if plan.reason is Reason.ERROR:
            self._faults[_WHAT] += 1
        teaches = plan.orders or plan.memos or plan.seen
        if not teaches and plan.body is body and (restores or not self.may_restore):
            return None  # else see whether the response passes through the picker
        # Remember the order before the request ends, so that a burst of requests shares it.
        self.after(partial(ordering.hook.note, plan, now))
        return _Reworked(self, ordering, plan, observes=mode == "observe")

    def after(self, call: Callable[[], None]) -> None:
        """Defer a call until messages are sent, but not beyond the next use of a hook."""
        self._due.append(call)
        self.later(self._catch_up)

    def _catch_up(self) -> None:
        """Make the deferred calls; count an error, never raise it."""
        while self._due:
            call = self._due.popleft()
            try:
                call()
            except Exception:  # noqa: BLE001 - a hook's error must not fail the request
                self._faults[_WHAT] += 1

    def judge(self, ordering: Ordering) -> None:
        """Report once if a route has switched itself off."""
        guard, source = ordering.hook.guard, f"{Fault.CONTEXT} {ordering.rule.name}"
        if not guard.off or source in self._problems or ordering not in self.orderings:
            return
        gain, _ = guard.gain()
        why = f"reordering does not pay off here: {gain:+.3f} of the prompt cached due to the hook"
        self._problems.report(Fault.CONTEXT, f"switched itself off: {why}", ordering.rule.name)

    # -- the engines' caches -------------------------------------------------------------------

    def forget(self, endpoint: str, before: float | None = None) -> None:
        """Forget an endpoint's orders: all, or only those not sent since `before` (seconds)."""
        self._catch_up()
        for ordering in self.orderings:
            ordering.hook.forget(endpoint, before=before)
