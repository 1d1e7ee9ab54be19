"""The number of laar's own functions that a typical request calls is limited."""

from __future__ import annotations

from bench.bench_road import moves, usual_request

CALLS, MOVES = 227, 28
"""Upper limits on calls, and on moves between files. Lower them when the path gets shorter; never
raise them for a feature that a typical request does not use."""


async def test_a_typical_request_stays_within_its_budget_of_calls() -> None:
    trail = await usual_request()
    assert len(trail) <= CALLS
    assert moves(trail) <= MOVES
