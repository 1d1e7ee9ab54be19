"""Health's records of requests in flight: where each was sent, and how that attempt went."""

from __future__ import annotations

from functools import partial
from math import log2

from laar.core.decision import Completion, Decision
from laar.core.plugin import Plugins
from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import goes_by, key_of
from laar.health import FAILURES, GOOD, USELESS, Asked, Health, Kind, Reply, Stage, judge
from laar.health.requests import NOTHING
from laar.prefix.blocks import Chain
from laar.request import Request

_BITS = (1 << 11) - 1

RESENT_BYTES = 1 << 20
"""Size of a body that is sent again after a reset. Engines that refuse a long body (401, 413) close
the connection while Envoy still writes, and Envoy then sees the reset but not the answer: each
endpoint would be sent megabytes, for nothing."""

ENDPOINT = "endpoint"
"""What attempts may share, besides the model, the API, the client and what plug-ins add."""


class Attempts:
    """Begins, tracks and ends the attempts of a request.

    The director guards each call: an error in health may lose a record, but not the request or its
    reservation.

    Args:
        table: the endpoints.
        health: tracks which endpoints answer.
        plugins: hear of failures.
    """

    def __init__(self, table: EndpointTable, health: Health, plugins: Plugins) -> None:
        self._table = table
        self._health = health
        self._plugins = plugins
        health.records.on_gone = partial(plugins.ask, "gone")

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
            flight.variant_of or flight.model,
            stream=decision.request.stream,
            predicted_s=expected_s(decision),
            tokens=decision.tokens,
            now=now,
            rtt_s=float(view.wire_s[decision.position]),
            trial=decision.trial and timed,
            timed=timed,
            name="" if name in decision.settings.aliases else name,  # alias: the main model
            tenant=decision.request.tenant,
            digest=decision.request.digest,
            repeated_at=decision.fallbacks[:1],
        )
        marks = marks_of(decision.request) if health.refused else 0
        flight.read = health.wants_read(attempt, now, marks)
        if health.suspects.culprits:
            health.suspects.sent(shared_of(decision, flight.slot), now)

    def replied(self, decision: Decision, reply: Reply, now: float, *, read: bool) -> None:
        """Record the status of the answer, or a later error."""
        flight, health, excused = decision.flight, self._health, False
        if reply.event or reply.status >= 500 or flight.unjudged or health.culprits:  # rarely true
            # An answer with good headers is already counted; then only an error in its body counts.
            begun = flight.attempt is not None and flight.attempt.stage is not Stage.SENT
            if reply.event or not begun:
                excused = self._judge(decision, reply, now) is Kind.REQUEST
        failed = reply.event or reply.status >= 500
        if failed or (
            now < health.suspects.until
            and flight.attempt is not None
            and flight.attempt.stage is Stage.SENT
        ):
            self._compare(decision, flight.slot, judge(reply), now)
        if flight.attempt is not None:
            spec = self._table.by_slot.get(flight.slot)  # None if the endpoint has left
            if reply.model and (spec is None or goes_by(reply.model, spec.models)):
                reply.model = ""
            asked = NOTHING
            refuses = reply.status >= 400 or bool(health.refused) or reply.found in USELESS
            if refuses or reply.found is not None or reply.event:
                asked = _asked(decision, marks=refuses)
            health.replied(flight.attempt, reply, now, read=read, excused=excused, asked=asked)
        if decision.parts:
            self._plugins.told("replied", decision, reply, now, excused)

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
        flight, health, request = decision.flight, self._health, decision.request
        failed = [slot for slot, _ in flight.unjudged]
        if reply is not None:
            failed.append(flight.slot)
        kind = health.retried(_asked(decision), failed, reply, now)
        hurt = [slot for slot, _ in flight.unjudged]
        unread = reply is None and request.body_bytes > RESENT_BYTES
        if kind is Kind.FULL or unread:
            hurt.clear()
        if reply is not None and judge(reply) in FAILURES:
            hurt.append(flight.slot)
        for slot in hurt:
            self._failed(decision, slot, now)
        for slot, attempt in flight.unjudged:
            self._compare(decision, slot, kind, now)
            health.passed_over(slot, now, attempt, kind)
        flight.unjudged.clear()
        return kind

    def _failed(self, decision: Decision, slot: int, now: float) -> None:
        """Record that the request failed at a slot where its body may have arrived."""
        if decision.request.digest and not decision.request.shadow:
            self._plugins.ask("failed", decision, slot, now)
            self._health.questions.look_after(slot, now)

    def _compare(
        self, decision: Decision, slot: int, verdict: Kind | str | None, now: float
    ) -> None:
        """Compare an attempt with others by all that they share; refusals show nothing."""
        failed = verdict in FAILURES or verdict in (Kind.RETRIED, Kind.REQUEST)
        if failed or verdict == GOOD:
            self._health.suspects.note(shared_of(decision, slot), now, failed=failed)

    def ended(self, decision: Decision, end: Completion) -> None:
        """End all attempts of a request."""
        flight, now, health = decision.flight, decision.now + end.latency_s, self._health
        if flight.unjudged:  # no endpoint answered
            self._judge(decision, None, now)
        if flight.attempt is not None:
            if end.cause == "reset" and flight.attempt.stage is Stage.SENT:
                self._compare(decision, flight.slot, Kind.RETRIED, now)
            if end.shown is not None:
                health.shown(flight.attempt, end.shown, _asked(decision).prompt)
            health.ended(flight.attempt, end.status, end.cause, now)
        if end.cause == "reset" or (end.cause == "disconnect" and end.status is None):
            self._failed(decision, flight.slot, now)


def asked_of(request: Request, chain: Chain | None, *, marks: bool = False) -> Asked:
    """Return what a request has in common with others; `marks` only matter if some is refused."""
    tenant, clients = request.tenant, []
    if request.session:
        clients.append(hash(("session", tenant, request.session)))
    if tenant:
        clients.append(hash(("tenant", tenant)))
    clients.append(chain.hashes[0] if chain is not None and len(chain) else hash(request.question))
    prompt = hash((request.question, request.chars, request.max_tokens))
    return Asked(marks_of(request) if marks else 0, tuple(clients), prompt, tenant)


def _asked(decision: Decision, *, marks: bool = False) -> Asked:
    chain = None if decision.view is None else decision.view.chain
    return asked_of(decision.request, chain, marks=marks)


def marks_of(request: Request) -> int:
    """Return a bit mask of what an engine may refuse a request for, whatever that is.

    The lowest bits say how long its prompt is at least, by quarters of an octave. Each other mark
    sets two, so that one mark seldom looks like others together. It is 0 if they were not read.
    """
    if request.marks is None:
        return 0
    found = (1 << int(4.0 * log2(request.chars + 1))) - 1
    for mark in ("model " + request.model, request.api, f" {request.tenant}", *request.marks):
        which = hash(mark)
        found |= 1 << 128 + (which & _BITS) | 1 << 128 + (which >> 12 & _BITS)
    return found


def shared_of(decision: Decision, slot: int) -> dict[str, str]:
    """Return what an attempt at an endpoint may share with others: see `laar.health.suspects`."""
    request = decision.request
    found = {
        ENDPOINT: str(slot),
        "model": decision.flight.model,
        "API": request.api.value,
        "client": str(hash(request.tenant)) if request.tenant else "",  # it may be a secret
    }
    for part in decision.parts.values():
        found |= part.shared
    return {name: value for name, value in found.items() if value}


def expected_s(decision: Decision) -> float:
    """Return the expected seconds to the first token; without costs, the prefill's."""
    view, at = decision.view, decision.position
    assert view is not None
    if (terms := view.terms) is None:
        return decision.uncached_tokens * float(view.seconds_per_token[at])
    expected = float((terms.latency_s if terms.ttft_s is None else terms.ttft_s)[at])
    if decision.flight.variant_of and not decision.request.stream:
        # Nothing is seen of an answer until it ends: compare it with the model's usual ones.
        usual = view.slots.tolist().index(decision.slot)  # its first candidate is no variant
        expected *= float(terms.latency_s[at] / terms.latency_s[usual])
    return expected
