"""Simulated engines whose times are easily computed by hand."""

from laar_lab.sim.engine import EngineProfile, EngineSettings, LinearCost

DECODE_S = 0.01


def linear_engine(seconds_per_token: float, num_blocks: int = 1000) -> EngineProfile:
    """Return an engine that reads at this speed, and writes a token in `DECODE_S`."""
    return EngineProfile(
        name="linear",
        cost=LinearCost(seconds_per_token=seconds_per_token, decode_s_per_token=DECODE_S),
        settings=EngineSettings(num_blocks=num_blocks, max_num_batched_tokens=100_000),
    )
