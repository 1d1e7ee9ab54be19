"""A picker that has seen no answers gets to know each endpoint before it stays with one."""

import random

import pytest
from watching import ask, settle, watched_picker


@pytest.mark.parametrize("seed", range(4))
async def test_the_first_requests_reach_every_endpoint(tmp_path, seed):
    rng = random.Random(seed)
    took_s = {f"10.9.0.{number}:8000": rng.uniform(0.2, 1.0) for number in range(4)}
    models = [(address, f"model-{number}", "") for number, address in enumerate(took_s)]
    served = []
    async with watched_picker(tmp_path, models) as (runner, _):
        for number in range(8):
            decision = ask(runner, after_s=2.0 * number, text=f"question {rng.random()} " * 20)
            served.append(decision.address)
            latency_s = took_s[decision.address]
            counts = {"prompt_tokens": 100, "completion_tokens": 50}
            settle(runner, decision, latency_s=latency_s, ttft_s=0.2 * latency_s, **counts)
    assert set(served) == set(took_s)
