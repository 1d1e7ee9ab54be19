"""What may follow an attempt of a decided request, in one table.

================================= ============================== ==================================
the attempt                       a computation                  a request that acts
================================= ============================== ==================================
certainly did nothing: no         is repeated once at the next   is repeated at the next endpoint,
connection, reset before it was   endpoint                       then at the one after it
sent, 429, 529
may have acted: 408, 5xx but 501  the same; after a reset, only  ends: the client gets the engine's
and 505, reset later, a web page  if its body is short           answer, or 503
is open: no headers in time       is hedged, to an endpoint      is waited for
                                  where no attempt is open
================================= ============================== ==================================

Envoy counts all retries of a request alike. So none of a computation's follows a second attempt,
which may have died of it as the first did (`laar.plugins.deadly`).

A request *acts* unless laar knows that it only computes an answer: its method is safe, or its path
is one of `laar.protocol.paths` and its body asks for nothing else. While a hedged attempt is open,
no 4xx ends the request. If the model has no other endpoint, 429 and 503 do: their ``retry-after``
is for the client. laar's routes allow what follows the first kind of attempt, and the
metadata returned here extend that.
"""

from __future__ import annotations

from typing import NamedTuple

from laar.core.attempts import RESENT_BYTES
from laar.core.decision import Decision
from laar.health.kinds import FULL_STATUSES, UNKNOWN_TO_ENGINE
from laar.protocol import agreed
from laar.protocol import headers as names
from laar.request import TEXTS, Api

REPEATS = 1
"""How often a computation is repeated, wherever its attempts end: each may kill an engine."""

_BUSY = {*FULL_STATUSES}
_FAILED = {408, *range(500, 600)} - {*UNKNOWN_TO_ENGINE, *FULL_STATUSES}
_STATUSES = {  # by whether the request may be repeated, and whether the model has other endpoints
    key: ",".join(map(str, sorted(statuses)))
    for key, statuses in {
        (True, True): _FAILED | _BUSY,
        (False, True): _BUSY,
        (True, False): _FAILED - {503},
        (False, False): set(),
    }.items()
}

_NO_PAGES = TEXTS | {Api.EMBEDDINGS}

_PATIENCE = 10.0
_SLOWEST_TOKEN_S = 0.2
"""Terms of the silence to expect: ten times the expected latency, and 0.2 s per token. A premature
timeout costs an answer; a late one costs only time."""

_BEGIN_S = 3.0
_BEGIN = 5.0
_SLOW_TOKEN_S = 0.1
"""Terms of the time allowed before the response headers, after which the request is hedged. Too
short a time costs only duplicate work, so half as much per token suffices."""


class EnvoyAttempts(NamedTuple):
    """The attempts that Envoy may make.

    Args:
        destinations: the endpoints in order, at least one per attempt; all serve the model.
        patience_s: a value of `laar.protocol.headers.PATIENCE`; None for Envoy's own limits.
        retries: metadata for Envoy's retry policy.
    """

    destinations: tuple[str, ...]
    patience_s: int | None
    retries: tuple[tuple[str, str], ...]


def attempts_of(
    decision: Decision, limit: int, *, acts: bool, body_bytes: int | None
) -> EnvoyAttempts:
    """Return the attempts that Envoy may make.

    Args:
        decision: the decision.
        limit: maximum number of attempts; 0 if Envoy does not give it.
        acts: the request may do more than compute an answer.
        body_bytes: size of the body; None if it is not known yet.
    """
    ranked = (decision.address, *decision.fallbacks)
    # Repeated if there are more attempts; otherwise an engine's error would not reach the client.
    destinations = (ranked * limit)[:limit] if limit > len(ranked) else ranked
    if not limit:  # not laar's Envoy: kgateway's subsets match all metadata
        return EnvoyAttempts(destinations, None, ())
    stays = decision.request.stays_as is not None  # no other endpoint has what it lists or adds to
    repeats = not (acts or decision.once or stays)
    patience_s = _patience(decision, hedges=repeats and len(ranked) > 1)
    retries = []
    if statuses := _STATUSES[repeats, not (decision.alone or stays)]:
        retries.append((names.RETRIED_STATUSES, statuses))
    on = ["reset"] if repeats and body_bytes is not None and body_bytes <= RESENT_BYTES else []
    if repeats and decision.request.api in _NO_PAGES:
        on.append(agreed.RETRY_PAGES)
    if on:
        retries.append((names.RETRY_ON, ",".join(on)))
    if repeats:
        # If it is hedged, each attempt is at an endpoint of its own.
        most = min(REPEATS, limit - 1, len(ranked) - 1 if patience_s in names.BEGINS_S else limit)
        retries.append((names.MAX_RETRIES, str(most)))
    return EnvoyAttempts(destinations, patience_s, tuple(retries))


def _patience(decision: Decision, *, hedges: bool) -> int | None:
    """Return how long the endpoint may stay silent, derived from its expected latency.

    An answer that is not streamed is silent until its last token.
    """
    request, view = decision.request, decision.view
    if view is None or view.terms is None:
        return None
    tokens = 0 if request.stream else request.max_tokens
    if tokens is None:
        return None
    expected_s = view.terms.latency_s.item(decision.position)
    silence_s = _PATIENCE * expected_s + _SLOWEST_TOKEN_S * tokens
    if silence_s > names.SILENCE_S:
        return None
    begin_s = _BEGIN_S + _BEGIN * expected_s + _SLOW_TOKEN_S * tokens
    if request.patience_s is not None:  # leave the next endpoint as much of it
        begin_s = min(begin_s, 0.5 * request.patience_s)
    for known_s in names.BEGINS_S if hedges else ():
        if known_s >= begin_s:
            return known_s
    return names.SILENCE_S
