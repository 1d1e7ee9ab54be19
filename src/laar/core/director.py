"""The director: the lifecycle of a request; synchronous, with time passed in.

`decide` chooses and reserves in one call, with no await between reading the table and counting the
request, so two requests of a burst never both find the same endpoint idle. `settle` undoes the
reservation exactly once, however the request ended, and passes the completion to the learners.

An error in an estimator, a learner or an observer never fails a request. Each call is guarded
(`laar.core.guards`); a decision made without a part says so in its reason (`degraded-*`). Learners
and observers are called in the order in which they were added (`Observers`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from laar.core.attempts import Attempts
from laar.core.chooser import Chooser, Priority
from laar.core.decision import Completion, Decision, DirectorSettings, InFlight
from laar.core.feedback import Feedback
from laar.core.guards import Observers, run_steps
from laar.core.interfaces import Assessor, PartFailure, Room
from laar.core.plugin import Plugin
from laar.core.policy import Policy
from laar.errors import RequestError
from laar.fleet.away import may_come
from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import key_of
from laar.health import Health, Reply
from laar.request import Request

if TYPE_CHECKING:
    from laar.prefix.beliefs import PrefixBeliefs


class Director:
    """Decides where requests go, and settles them.

    Args not listed are those of `Chooser`.

    Args:
        new_id: makes the ids of decisions. Outcomes are reported by id, so clients must not be able
            to guess other clients' ids. None uses `rng`, which is good enough for a lab.
    """

    def __init__(
        self,
        table: EndpointTable,
        policies: Mapping[str, Policy],
        settings: DirectorSettings,
        *,
        rng: random.Random,
        plugins: Iterable[Plugin] = (),
        new_id: Callable[[], str] | None = None,
        assessor: Assessor | None = None,
        prefixes: PrefixBeliefs | None = None,
        health: Health | None = None,
        on_fault: Callable[[PartFailure], None] = lambda _fault: None,
    ) -> None:
        chooser = self.chooser = Chooser(
            table,
            policies,
            settings,
            rng=rng,
            plugins=plugins,
            assessor=assessor,
            prefixes=prefixes,
            health=health,
            on_fault=on_fault,
        )
        self.table, self.prefixes, self.health = table, prefixes, chooser.health
        self.engines, self.plugins, self.degraded = (
            chooser.engines,
            chooser.plugins,
            chooser.degraded,
        )
        self.choose, self.use = chooser.choose, chooser.use
        feedback = self._feedback = Feedback(table, chooser.engines, prefixes)
        attempts = self._attempts = Attempts(table, self.health, self.plugins)
        ids = random.Random(rng.getrandbits(40))
        self.new_id = new_id or (lambda: f"{ids.getrandbits(128):032x}")
        """Returns an id for a new decision."""
        # Guarded one by one: a part that fails must not leave the table half changed.
        observers = self._observers = Observers()
        if prefixes is not None:
            observers.add("prefixes", placed=self._enter_prefix, left=prefixes.drop)
            prefixes.make_room(table.capacity)
            prefixes.found.alike = prefixes.shown.alike = table.alike
            table.on_grow.append(prefixes.make_room)
        if health is not None:  # otherwise nothing is excluded: do not record every attempt
            observers.add("health", counted=attempts.begin, ended=attempts.ended)
        observers.add(
            "learning",
            placed=feedback.begin,
            ending=feedback.engine_ended,
            ended=feedback.ended,
            left=self.engines.drop,
        )
        observers.add("learning", left=lambda slot: self.plugins.ask("leave", slot))
        observers.add("health", left=self.health.drop)
        table.on_free = lambda slot: run_steps(observers.left, self.degraded, slot)

    def watch(
        self,
        decided: Callable[[Decision], object] | None = None,
        settled: Callable[[Decision, Completion], object] | None = None,
        left: Callable[[int], object] | None = None,
    ) -> None:
        """Call `decided` after each decision is reserved, and `settled` when its request ends.

        `left` is called with the slot of each endpoint that is removed.
        """
        self._observers.add("watching", counted=decided, ended=settled, left=left)

    @property
    def settings(self) -> DirectorSettings:
        """The settings in effect."""
        return self.chooser.settings

    # -- deciding ------------------------------------------------------------------------------

    def decide(
        self,
        request: Request,
        now: float,
        room: Room | None = None,
        priority: Priority | None = None,
    ) -> Decision:
        """Choose an endpoint and reserve it. Arguments and errors are those of `Chooser.choose`."""
        try:
            decision = self.choose(request, now, room, priority, new_id=self.new_id)
        except RequestError as error:
            if may_come(error, request):
                self.table.away.missed(request)
            raise
        self.table.decisions += 1
        self.table.chosen[decision.slot] = self.table.decisions
        run_steps(self._observers.placed, self.degraded, decision, now)
        load = decision.tokens, decision.uncached_tokens, decision.request.answers
        self.table.reserve(decision.slot, *load)
        if decision.parts or self.plugins.wary:
            self.plugins.told("reserve", decision, now)
        run_steps(self._observers.counted, self.degraded, decision)
        return decision

    # -- in flight -----------------------------------------------------------------------------

    def replied(self, decision: Decision, reply: Reply, now: float, *, read: bool = False) -> None:
        """Record the endpoint's status, or a later error; `read` if the body is read."""
        self.degraded.attempt("health", self._attempts.replied, decision, reply, now, read=read)
        if reply.text and (reply.event or reply.status < 500):
            self.plugins.ask("refused", decision, reply.text, now)

    def attempted(self, decision: Decision, failed: tuple[str, ...], now: float) -> None:
        """Record that Envoy tried these endpoints, in this order, before the one that answers."""
        flight = decision.flight
        if flight.settled or decision.request.shadow:
            return
        flight.failed = failed
        self.degraded.attempt("health", self._attempts.passed_over, decision, failed, now)

    def served_by(self, decision: Decision, address: str, now: float) -> None:
        """Move the reservation to the endpoint that serves, if it isn't the one chosen.

        Envoy may have retried or, in shadow mode, made the choice; then the model may differ too.
        If the attempts were not reported (`attempted`), the endpoints listed before this one are
        recorded as failed.
        """
        slot, flight = self.table.slot(key_of(address, decision.rank)), decision.flight
        if slot < 0:  # in shadow mode another picker chooses: use any rank there
            slot = next(iter(self.table.named(address)), -1)
        if flight.settled or slot < 0:
            return
        flight.served = True
        if slot == flight.slot:
            if flight.attempt is None:  # in shadow mode: the chosen endpoint serves after all
                self.degraded.attempt("health", self._attempts.begin, decision, now)
            return
        named = (flight.address, *decision.fallbacks)
        if not flight.failed and not decision.request.shadow and address in named:
            self.attempted(decision, named[: named.index(address)], now)
        if flight.attempt is not None:
            self.degraded.attempt("health", self.health.gone, flight.attempt, now)
        self.degraded.attempt("learning", self._feedback.moves, decision, now)
        self._release(decision)
        if self.prefixes is not None and flight.receipt is not None:
            self.degraded.attempt("prefixes", self.prefixes.retract, flight.receipt)
        if not flight.variant_of:  # else all fallbacks have it
            _move_to_model(flight, self.table.spec(slot).models[0])
        flight.slot = slot
        flight.address = address
        flight.receipt = None
        run_steps(self._observers.placed, self.degraded, decision, now)
        load = decision.tokens, decision.uncached_tokens, decision.request.answers
        self.table.reserve(slot, *load, answering=flight.answering)
        if decision.parts or self.plugins.wary:
            self.plugins.told("move", decision, now)
        self.degraded.attempt("health", self._attempts.begin, decision, now)

    def answering(
        self, decision: Decision, now: float, *, ok: bool = True, said: bool = True
    ) -> None:
        """Record that the answer has begun, or that it continues.

        `ok` is false if the answer is a refusal. Unless it has `said` anything, this is only a sign
        of life: the prefill ends with the first token.
        """
        flight = decision.flight
        if ok and flight.attempt is not None:
            self.degraded.attempt("health", self.health.answering, flight.attempt, now)
        if said and not flight.settled and not flight.answering:
            flight.answering = True
            if decision.parts:
                self.plugins.told("answering", decision, now, ok)
            self.table.release_prefill(flight.slot, decision.uncached_tokens)
            if ok and flight.began is not None:
                self.degraded.attempt("learning", self.engines.answering, flight.began, now)

    def finished(self, decision: Decision) -> bool:
        """Take a complete answer off its endpoint's load, once; return whether its stream is open.

        Some servers leave it open, for the client to close.
        """
        flight = decision.flight
        if not flight.answering or flight.settled or flight.released:
            return False
        flight.released = True
        self._release(decision)
        return True

    def expect_no_end(self, decision: Decision, now: float) -> None:
        """Learn nothing from when the stream of a complete answer ends."""
        if not decision.flight.settled:
            if decision.flight.attempt is not None:
                self.degraded.attempt("health", self.health.gone, decision.flight.attempt, now)
            self.degraded.attempt("learning", self._feedback.moves, decision, now)

    def holds(self, slot: int, now: float) -> bool:
        """Return whether an endpoint that drains is still needed."""
        return self.table.in_flight.item(slot) > 0.0 or any(self.plugins.each("holds", slot, now))

    def settle(self, decision: Decision, end: Completion) -> None:
        """End a request; only the first call has an effect."""
        flight = decision.flight
        if flight.settled:
            return
        flight.settled = True
        if flight.attempt is not None and flight.attempt.useless:
            end.ok = False  # learn no more from it than from a refusal
        run_steps(self._observers.ending, self.degraded, decision, end)
        if end.ok:
            self.table.answered_at[flight.slot] = decision.now + end.latency_s
        if not flight.released:
            load = decision.tokens, decision.uncached_tokens, decision.request.answers
            self.table.release(flight.slot, *load, answering=flight.answering)
        if decision.parts or self.plugins.wary:
            self.plugins.told("complete", decision, end)
        run_steps(self._observers.ended, self.degraded, decision, end)

    # -- the records of a request at its endpoint ----------------------------------------------

    def _enter_prefix(self, decision: Decision, _now: float) -> None:
        prefixes, view, flight = self.prefixes, decision.view, decision.flight
        if prefixes is not None and view is not None and (chain := view.chain) is not None:
            flight.receipt = prefixes.insert(flight.slot, chain, decision.now)
            held = prefixes.blocks_held
            if held.blocks and not decision.request.shadow:
                flight.traced_as = held.expect(self.new_id(), flight.slot, chain, decision.tokens)

    def _release(self, decision: Decision) -> None:
        load = decision.tokens, decision.uncached_tokens, decision.request.answers
        self.table.release(decision.flight.slot, *load, answering=decision.flight.answering)


def _move_to_model(flight: InFlight, model: str) -> None:
    """Record which model answers: retries and outcomes refer to it, not to the chosen one."""
    if model == flight.model:
        return
    earlier = flight.tried[:-1]
    # The chosen model has not been tried after all, unless an earlier attempt used it.
    flight.exhausted = flight.exhausted and flight.model in earlier
    flight.model = model
    if flight.tried:
        flight.tried = (*earlier, model)
