"""The request on its way to the endpoint: where it goes, with which body, and how long to wait."""

from __future__ import annotations

from dataclasses import dataclass

from laar.core.decision import Decision
from laar.protocol import headers as names

__all__ = ["Sending", "destinations", "silence_s"]

_PATIENCE_S = 50.0
_PATIENCE = 10.0
_SLOWEST_TOKEN_S = 0.2
"""Silence that is allowed: an engine's hiccup, ten times the expected time to the first token, and
five tokens a second. A time-out here costs an answer, and one too long costs only a wait."""


@dataclass(slots=True)
class Sending:
    """A decision, ready to be written.

    Args:
        destination: the endpoints in order, separated by commas.
        silence_s: how long an endpoint may send nothing; None leaves that to Envoy.
        head: the request's headers.
        request_id: the client's, or ours where it gave none.
        room_for_headers: some may be added.
        body: whole; None where none is here.
        changed: it is not the client's any more.
        whole: nothing of the body is to come.
        trailers: come behind the body.
        prefiller: reads the prompt for the endpoint; empty where that reads it itself.
    """

    destination: str
    silence_s: int | None
    head: names.Head
    request_id: str
    room_for_headers: bool
    body: bytes | None
    changed: bool
    whole: bool
    trailers: bool
    prefiller: str = ""


def destinations(decision: Decision, attempts: int) -> tuple[str, ...]:
    """The endpoints in order, as often as Envoy tries: what is off the list is other models'.

    The same ones again: with none left an engine's own error would never reach the client.
    """
    ranked = (decision.address, *decision.fallbacks)
    rounds = -(-attempts // len(ranked))
    return (ranked * rounds)[:attempts] if rounds > 1 else ranked


def silence_s(decision: Decision) -> int | None:
    """How long the endpoint may send nothing, by its expected latency; None when unknown.

    An answer that is not streamed is silent until its last token.
    """
    request, view = decision.request, decision.view
    if view is None or view.terms is None:
        return None
    tokens = 0 if request.stream else request.max_tokens
    if tokens is None:
        return None
    expected_s = float(view.terms.latency_s[decision.position])
    bound_s = _PATIENCE_S + _PATIENCE * expected_s + _SLOWEST_TOKEN_S * tokens
    return next((s for s in names.SILENCES_S if s >= bound_s), None)
