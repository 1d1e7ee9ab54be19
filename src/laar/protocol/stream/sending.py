"""Where a decided request goes, and how long to wait there."""

from __future__ import annotations

from laar.core.decision import Decision
from laar.protocol import headers as names
from laar.protocol.events import Patience

_PATIENCE_S = 50.0
_PATIENCE = 10.0
_SLOWEST_TOKEN_S = 0.2
"""Allowed silence: a constant for hiccups, ten times the expected latency, and five tokens per
second. A premature timeout costs an answer; a late one costs only waiting."""

_BEGIN_S = 3.0
_BEGIN = 5.0
_SLOW_TOKEN_S = 0.1
"""Time allowed before the response headers, after which the request is hedged. Too short costs only
duplicate work, too long costs waiting, so half as much per token suffices."""


ONCE = Patience(names.SILENCES_S[-1], once=True)
"""The patience of requests that are tried once; a single route serves them."""


def destinations(decision: Decision, attempts: int) -> tuple[str, ...]:
    """Return the endpoints in order, one per Envoy attempt; all serve the body's model.

    The list is repeated for the remaining attempts: if it ended early, an engine's error would not
    reach the client.
    """
    ranked = (decision.address, *decision.fallbacks)
    rounds = -(-attempts // len(ranked))
    return (ranked * rounds)[:attempts] if rounds > 1 else ranked


def patience(decision: Decision) -> Patience:
    """Return how long the endpoint may stay silent, derived from its expected latency.

    An unstreamed answer is silent until its last token. If no other endpoint serves the model,
    Envoy does not hedge.
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
