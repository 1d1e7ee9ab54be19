"""The request on its way to the endpoint: where it goes, with which body, and how long to wait."""

from __future__ import annotations

from dataclasses import dataclass

from laar.core.decision import Decision
from laar.protocol import headers as names
from laar.protocol.events import Patience

_PATIENCE_S = 50.0
_PATIENCE = 10.0
_SLOWEST_TOKEN_S = 0.2
"""Silence that is allowed: an engine's hiccup, ten times the expected time to the first token, and
five tokens a second. A timeout here costs an answer, and one too long costs only a wait."""

_BEGIN_S = 3.0
_BEGIN = 5.0
_SLOW_TOKEN_S = 0.1
"""The same for the answer's head, after which another endpoint is asked as well. Too short costs
work done twice, too long a wait: so half as much will do."""


ONCE = Patience(names.SILENCES_S[-1], once=True)
"""For a request that is tried once; there is one route for these."""


@dataclass(slots=True)
class Sending:
    """A decision, ready to be written.

    Args:
        destination: the endpoints in order, separated by commas.
        patience: how long an endpoint may send nothing.
        head: the request's headers.
        request_id: the client's, or laar's where it gave none.
        may_add_headers: their number and size allow it.
        body: the complete body; None where none is here.
        changed: the body differs from the client's.
        is_complete: nothing of the body is still to come.
        trailers: trailers follow the body.
        engine_headers: headers by which the engine is steered.
    """

    destination: str
    patience: Patience
    head: names.Head
    request_id: str
    may_add_headers: bool
    body: bytes | None
    changed: bool
    is_complete: bool
    trailers: bool
    engine_headers: tuple[tuple[str, str], ...] = ()


def destinations(decision: Decision, attempts: int) -> tuple[str, ...]:
    """Return the endpoints in order, one for each of Envoy's attempts; all have the body's model.

    Where attempts are left, the list repeats: with no endpoint left, an engine's own error would
    never reach the client.
    """
    ranked = (decision.address, *decision.fallbacks)
    rounds = -(-attempts // len(ranked))
    return (ranked * rounds)[:attempts] if rounds > 1 else ranked


def patience(decision: Decision) -> Patience:
    """Return how long the endpoint may send nothing, by its expected latency.

    An answer that is not streamed is silent until its last token. Where no other endpoint answers
    for the model, Envoy asks none while this one has not begun.
    """
    if decision.once:
        return ONCE
    request, view = decision.request, decision.view
    if view is None or view.terms is None:
        return Patience()
    tokens = 0 if request.stream else request.max_tokens
    if tokens is None:
        return Patience()
    expected_s = view.terms.latency_s.item(decision.position)
    if decision.fallbacks:
        bound_s = _BEGIN_S + _BEGIN * expected_s + _SLOW_TOKEN_S * tokens
        for begin_s, silence_s in names.BEGINS_S.items():
            if begin_s >= bound_s:
                return Patience(silence_s, begin_s)
    bound_s = _PATIENCE_S + _PATIENCE * expected_s + _SLOWEST_TOKEN_S * tokens
    return Patience(next((s for s in names.SILENCES_S if s >= bound_s), None))
