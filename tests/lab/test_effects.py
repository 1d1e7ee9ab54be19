"""Effects of experiments at a small size: what holds, on seeds where it is far from its bound."""

from __future__ import annotations

from statistics import mean

from laar.lab.experiments import hedging
from laar.lab.experiments.lookups import world_from

WORLD = world_from(None)
SEEDS = (1000, 1001)


def asked(hedge: str, users: int) -> dict[str, float]:
    """The mean of an experiment's small runs under a hedge."""
    runs = [hedging.run_one(WORLD, hedge, users, True, seed) for seed in SEEDS]
    return {name: mean(run[name] for run in runs) for name in runs[0]}


def test_a_hedge_at_a_quarter_is_right_early_and_at_a_price_of_1_hardly_hedges() -> None:
    alone, dear, quarter, _ = (asked(hedge, 1) for hedge in hedging.HEDGES)
    early, engine, in_the_end = "right within T/10", "engine s", "right within T"
    assert quarter[early] > alone[early] + 0.08
    assert quarter[engine] > 1.05 * alone[engine]
    assert dear[engine] < 1.02 * alone[engine]
    assert quarter[in_the_end] == alone[in_the_end]
