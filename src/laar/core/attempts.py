"""Health's records of requests in flight: where each was sent, and how that attempt went."""

from __future__ import annotations

from laar.core.decision import Completion, Decision
from laar.core.endpoints import EndpointTable
from laar.core.membership import key_of
from laar.core.names import goes_by
from laar.core.request import Request
from laar.health import GOOD, Asked, Health, Kind, Reply, Stage
from laar.health.requests import NOTHING
from laar.prefix.blocks import Chain


class Attempts:
    """Begins, tracks and ends the attempts of a request.

    The director guards each call: an error in health may lose a record, but not the request or its
    reservation.

    Args:
        table: the endpoints.
        health: tracks which endpoints answer.
    """

    def __init__(self, table: EndpointTable, health: Health) -> None:
        self._table = table
        self._health = health

    def begin(self, decision: Decision, served_at: float | None = None) -> None:
        """Begin the attempt at the chosen endpoint.

        `served_at` is when Envoy reported that the endpoint serves the request, if it did; in
        shadow mode an attempt begins only then.
        """
        flight, view, health = decision.flight, decision.view, self._health
        timed = served_at is None
        if view is None or (timed and decision.request.shadow):
            return
        now = decision.now if served_at is None else served_at
        name = decision.rewrite or decision.request.model
        attempt = flight.attempt = health.sent(
            flight.slot,
            decision.mode.model if decision.mode else flight.model,
            stream=decision.request.stream,
            predicted_s=expected_s(decision),
            tokens=decision.tokens,
            now=now,
            rtt_s=float(view.wire_s[decision.position]),
            trial=decision.trial and timed,
            timed=timed,
            name="" if name in decision.settings.aliases else name,  # alias: the main model
        )
        flight.read = health.wants_read(attempt, now)

    def begin_helper(self, decision: Decision, slot: int, now: float) -> None:
        """Begin the attempt at a prefiller; if it is excluded, this is its trial."""
        attempt = self._health.sent(
            slot,
            decision.mode.model if decision.mode else decision.model,
            stream=decision.request.stream,
            predicted_s=expected_s(decision),
            tokens=decision.tokens,
            now=now,
            trial=self._health.is_due(slot, now),
            timed=False,
        )
        decision.flight.helpers += (attempt,)

    def replied(self, decision: Decision, reply: Reply, now: float, *, read: bool) -> None:
        """Record the status of the answer, or a later error."""
        flight, health, excused = decision.flight, self._health, False
        if reply.event or reply.status >= 500 or flight.unjudged or health.culprits:  # rarely true
            # An answer with good headers is already counted; then only an error in its body counts.
            begun = flight.attempt is not None and flight.attempt.stage is not Stage.SENT
            if reply.event or not begun:
                excused = self._judge(decision, reply, now) is Kind.REQUEST
        if flight.attempt is not None:
            spec = self._table.by_slot.get(flight.slot)  # None if the endpoint has left
            if reply.model and (spec is None or goes_by(reply.model, spec.models)):
                reply.model = ""
            asked = NOTHING
            refuses = reply.status >= 400 or bool(health.refused)
            if refuses or reply.found is not None or reply.event:
                asked = asked_of(decision, kinds=refuses)
            health.replied(flight.attempt, reply, now, read=read, excused=excused, asked=asked)
        # The answer does not show which helper failed; the faulty one will fail more often.
        for attempt in flight.helpers:
            health.replied(attempt, reply, now, excused=excused)

    def passed_over(self, decision: Decision, failed: tuple[str, ...], now: float) -> None:
        """Record that Envoy tried these endpoints before the one that answers, if any does."""
        flight = decision.flight
        for address in failed:
            attempt = flight.attempt if address == flight.address else None
            slot = self._table.slot_counted(key_of(address, decision.rank))
            flight.unjudged.append((slot, attempt))
            if attempt is not None:
                flight.attempt = None  # if it answers after all, that is a new attempt

    def _judge(self, decision: Decision, reply: Reply | None, now: float) -> Kind:
        """Judge the attempts that Envoy retried elsewhere; return why they failed."""
        flight, health = decision.flight, self._health
        failed = [slot for slot, _ in flight.unjudged]
        if reply is not None:
            failed.append(flight.slot)
        chain = None if decision.view is None else decision.view.chain
        kind = health.retried(traits(decision.request, chain), failed, reply, now)
        for slot, attempt in flight.unjudged:
            health.passed_over(slot, now, attempt, kind)
        flight.unjudged.clear()
        return kind

    def helped(self, decision: Decision, now: float) -> None:
        """Record that the prefiller of a request has finished."""
        for attempt in decision.flight.helpers:
            self._health.answering(attempt, now)
            self._health.replied(attempt, Reply(status=200, found=GOOD), now)

    def ended(self, decision: Decision, end: Completion) -> None:
        """End all attempts of a request."""
        flight, now, health = decision.flight, decision.now + end.latency_s, self._health
        if flight.unjudged:  # no endpoint answered
            self._judge(decision, None, now)
        if flight.attempt is not None:
            if end.shown is not None:
                health.shown(flight.attempt, end.shown, asked_of(decision, kinds=False).prompt)
            health.ended(flight.attempt, end.status, end.cause, now)
        for attempt in flight.helpers:
            health.ended(attempt, end.status, end.cause, now)


def traits(request: Request, chain: Chain | None) -> tuple[int, ...]:
    """Return the traits that failing requests may share: see `laar.health.blame`.

    These are the tenant, the session, the beginning of the prompt, and the whole prompt. All
    requests with neither tenant nor session share one trait.
    """
    found = []
    if request.tenant or not request.session:
        found.append(hash(("tenant", request.tenant)))
    if request.session:
        found.append(hash(("session", request.tenant, request.session)))
    if chain is not None and len(chain):
        found += {chain.hashes[0], chain.hashes[-1]}
    return tuple(found)


def kinds_of(request: Request) -> tuple[int, ...]:
    """Return hashes of the request's kind, and of the broader kinds that it belongs to."""
    whole = hash((request.model, *request.marks, request.body_bytes.bit_length()))
    return whole, *map(hash, ("", request.model, *request.marks))


def asked_of(decision: Decision, *, kinds: bool) -> Asked:
    """Return what a request has in common with others; `kinds` only matter if some is refused."""
    request, chain = decision.request, None if decision.view is None else decision.view.chain
    clients = []
    if request.session:
        clients.append(hash(("session", request.tenant, request.session)))
    if request.tenant:
        clients.append(hash(("tenant", request.tenant)))
    clients.append(chain.hashes[0] if chain is not None and len(chain) else hash(request.question))
    prompt = hash((request.question, request.chars, request.max_tokens))
    return Asked(kinds_of(request) if kinds else (), tuple(clients), prompt)


def expected_s(decision: Decision) -> float:
    """Return the expected seconds to the first token; without costs, the prefill's."""
    view, at = decision.view, decision.position
    assert view is not None
    if (terms := view.terms) is None:
        return decision.uncached_tokens * float(view.seconds_per_token[at])
    expected = float((terms.latency_s if terms.ttft_s is None else terms.ttft_s)[at])
    if decision.mode is not None and not decision.request.stream:
        # Nothing is seen of an answer until it ends: compare it with the model's usual ones.
        usual = view.slots.tolist().index(decision.slot)  # the candidate without a mode
        expected *= float(terms.latency_s[at] / terms.latency_s[usual])
    return expected
