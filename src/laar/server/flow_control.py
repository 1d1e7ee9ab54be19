"""Flow control: waiting requests as futures, on top of the synchronous admission.

A request that need not wait is never suspended. A waiting request costs a future; all share one
timer, which also notices new and stale readings, and prefills that should be done by now: no event
announces these.

However a wait ends, nothing leaks: a request whose client disconnects is forgotten, and a decision
made at the same moment is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.envoy.endpoints_file import ENVOY_LEARNS_S
from laar.errors import RequestError
from laar.request import Request
from laar.slices import Slice

if TYPE_CHECKING:
    from laar.flow.admission import Admission, Waited

_TICK_S = 0.1
"""Seconds between checks of the queue without events; a tenth of the scrape interval."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting request: await its outcome, or forget it."""

    future: asyncio.Future[Waited]
    forget: Callable[[], None]
    """Cancels the wait of a client that is gone, and releases a decision just made for it."""

    async def outcome(self) -> tuple[Decision, float]:
        """Return the decision and the seconds waited; forget the request if cancelled.

        Raise `RequestError` if no endpoint can serve it, or it was shed, and `Exception` if
        deciding failed with an internal error.
        """
        try:
            outcome = await self.future
        except BaseException:
            self.forget()
            raise
        if isinstance(outcome.verdict, Exception):
            raise outcome.verdict
        return outcome.verdict, outcome.waited_s


class FlowControl:
    """Decides on requests, immediately or after a wait.

    Args:
        admission: decides which requests go and which wait.
        director: settles decisions whose clients are gone.
        waited: called with the outcome of every wait.
    """

    def __init__(
        self,
        admission: Admission,
        director: Director,
        *,
        clock: Callable[[], float],
        waited: Callable[[Waited], object],
    ) -> None:
        self.by_load = admission.by_load
        """Whether requests without a session may wait too."""
        self._admission = admission
        self._settle = director.settle
        self._clock = clock
        self._waited = waited
        self._waiting: dict[Hashable, asyncio.Future[Waited]] = {}
        self._next: asyncio.Handle | None = None
        self._opening: asyncio.TimerHandle | None = None
        self._called = False
        director.watch(settled=self._settled)

    def ask(self, request: Request, now: float) -> Decision | Waiting:
        """Return the decision, or a `Waiting` if the request has to wait.

        Raise `RequestError` if no endpoint can serve it, or it was shed, and `Exception` if
        deciding failed with an internal error.
        """
        try:
            answer = self._admission.ask(request, now)
        except RequestError:
            self._call()  # deliver any expiries that its arrival check found
            raise
        if isinstance(answer, Decision):
            return answer
        future = self._waiting[answer] = asyncio.get_running_loop().create_future()
        self._call()  # an endpoint may have room; a burst of arrivals shares one check
        return Waiting(future, lambda: self._forget(answer, future))

    def answering(self, decision: Decision, *, ok: bool, full: bool) -> None:
        """Handle an answer that begins or continues; see `Admission.answering`."""
        self._admission.answering(decision, ok=ok, full=full)
        self._call()

    def moved(self, decision: Decision) -> None:
        """Handle a request that Envoy sent to an endpoint other than the picked one."""
        self._admission.moved(decision, self._clock())

    def endpoints_changed(self, *, known: bool) -> None:
        """Record whether any endpoint is known; called once Envoy's file is written."""
        if not known and self.by_load:
            self._admission.ready = False
            if self._opening is not None:
                self._opening.cancel()
                self._opening = None
        elif self._admission.ready:
            self._call()
        elif self._opening is None:  # later changes don't postpone it
            self._opening = asyncio.get_running_loop().call_later(ENVOY_LEARNS_S, self._open)

    def drain(self) -> None:
        """Stop holding requests, so that none fails because its picker stops."""
        self._admission.draining = True
        self._dispatch()

    def _open(self) -> None:
        self._opening = None
        self._admission.ready = True
        self._dispatch()

    def _call(self) -> None:
        """Schedule one dispatch for all events of this event loop iteration."""
        if self._waiting and not self._called:
            self._schedule(0.0)

    def _dispatch(self) -> None:
        self._called = False
        now = self._clock()
        for outcome in self._admission.dispatch(now, Slice(self._clock).is_over):
            self._tell(outcome)
        due_s = self._admission.queue.next_wakeup_s(now)
        if due_s is not None and not self._called:
            self._schedule(due_s)

    def _schedule(self, due_s: float) -> None:
        """Schedule the next dispatch instead of any other: one slice for a turn of the loop."""
        if self._next is not None:
            self._next.cancel()
        self._called, loop = due_s == 0.0, asyncio.get_running_loop()
        self._next = (
            loop.call_soon(self._dispatch)
            if self._called
            else loop.call_later(min(due_s, _TICK_S), self._dispatch)
        )

    def _tell(self, outcome: Waited) -> None:
        future = self._waiting.pop(outcome.ticket, None)
        if future is None or future.done():  # its client is gone
            self._give_back(outcome)
        else:
            future.set_result(outcome)
        self._waited(outcome)

    def _forget(self, ticket: Hashable, future: asyncio.Future[Waited]) -> None:
        """Forget a request whose client is gone; release its outcome if it has just arrived."""
        self._waiting.pop(ticket, None)
        self._admission.left(ticket, self._clock())
        if future.done() and not future.cancelled():
            self._give_back(future.result())

    def _give_back(self, outcome: Waited) -> None:
        if isinstance(outcome.verdict, Decision):
            gone = Completion(status=None, cause="disconnect", latency_s=0.0)
            self._settle(outcome.verdict, gone)

    def _settled(self, decision: Decision, end: Completion) -> None:
        if decision.flight.admitted:
            begun = end.cause in ("complete", "hidden") or end.ttft_s is not None
            self._admission.ended(decision, self._clock(), begun=begun)
            self._call()
