"""The expected time of an answer at an endpoint of the usual pace, for health to compare with."""

from __future__ import annotations

from laar.core.decision import Decision

IN_FLIGHT_TOKENS = 100.0
"""Delay that a request in flight causes another, in tokens to read: 80 decoded tokens at 0.12 ms
for each sequence of a batch are about 100."""


def usual_s(decision: Decision) -> float:
    """Return the seconds that an endpoint of the usual pace would take, for health to compare with.

    The learned paces of endpoints are left out: they must not excuse one that became slow. For a
    policy that prices another way, the result is its own latency without `slow_s`; for one that
    does not price, the prefill's seconds.
    """
    view, at = decision.view, decision.position
    assert view is not None
    terms = view.terms
    if terms is None:
        return decision.uncached_tokens * float(view.seconds_per_token[at])
    if terms.ttft_s is None:
        slow_s = 0.0 if terms.slow_s is None else float(terms.slow_s[at])
        return float(terms.latency_s[at]) - slow_s
    ahead, prefiller = view.table.prefill_tokens, decision.prefiller
    work_tokens = decision.uncached_tokens + float(ahead[decision.flight.slot])
    if prefiller is not None:
        work_tokens += prefiller.uncached_tokens + float(ahead[prefiller.slot])
    crowd_tokens = IN_FLIGHT_TOKENS * float(view.in_flight[at])
    work_s = float(view.seconds_per_token[at]) * (work_tokens + crowd_tokens)
    return float(view.rtt_s[at] + view.base_s[at]) + work_s
