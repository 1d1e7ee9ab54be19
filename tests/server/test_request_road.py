"""The number of laar's own functions that a typical request calls is limited."""

from __future__ import annotations

from bench.bench_road import moves, usual_request

from support.artifacts import artifact, model

CALLS, MOVES = 224, 34
"""Upper limits on calls, and on moves between packages. Lower them when the path gets shorter;
never raise them for a feature that a typical request does not use. Six moves came when `core`
became four packages."""
MODES_CALLS = 51
"""Upper limit on the calls that modes add to a request that they apply to; most are those of any
plug-in that takes part in a request."""


async def test_a_typical_request_stays_within_its_budget_of_calls() -> None:
    trail = await usual_request()
    assert len(trail) <= CALLS
    assert moves(trail) <= MOVES


async def test_three_modes_a_model_cost_a_decision_only_a_few_calls(tmp_path) -> None:
    names = ["m", *(f"m:{effort}" for effort in ("none", "low", "medium"))]
    capability = tmp_path / "capability.json"
    capability.write_bytes(artifact({name: model(1.0) for name in names}).dump())
    accuracy = {"capability": str(capability)}
    modes = {name.partition(":")[2]: {"chat": {"reasoning_effort": name[2:]}} for name in names[1:]}
    without = await usual_request(accuracy=accuracy)
    trail = await usual_request(accuracy=accuracy, routing={"modes": {"m": modes}})
    assert len(trail) <= len(without) + MODES_CALLS
    assert moves(trail) <= MOVES + 22
