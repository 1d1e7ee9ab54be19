"""The path of a typical request through laar's own functions stays within a budget of calls."""

from __future__ import annotations

from bench.bench_road import moves, usual_request

CALLS, MOVES = 237, 28
"""The budget: lower it with each step that shortens the road. It is never raised for a feature that
a usual request does not use."""


async def test_a_typical_request_stays_within_its_budget_of_calls() -> None:
    trail = await usual_request()
    assert len(trail) <= CALLS
    assert moves(trail) <= MOVES
