"""The prefill table compared with closed forms and with a simulation of each length."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar_lab.sim.engine.prefill_time import PrefillTable
from laar_vllm.packing import largest_chunk
from support.exploring import examples


def cost(chunk_tokens: int, context_tokens: int) -> float:
    """Return an overhead, a linear part, and the attention over the existing context."""
    return (
        0.004 + 1.2e-5 * chunk_tokens + 6e-11 * chunk_tokens * (context_tokens + chunk_tokens / 2)
    )


def simulate(length: int, target_s: float = 0.02, step: int = 32) -> float:
    """Simulate one length by the paper's Algorithm 3, trying all sizes for each chunk."""
    done, total = 0, 0.0
    while done < length:
        sizes = range(8192, 0, -step)
        chunk = next((size for size in sizes if cost(size, done) <= target_s), step)
        chunk = min(chunk, length - done)
        total += cost(chunk, done)
        done += chunk
    return total


TABLE = PrefillTable.build(cost, max_tokens=131_072)


@pytest.mark.parametrize("length", [1024, 2048, 10_240, 66_560, 131_072])
def test_grid_points_equal_separate_simulations(length):
    assert TABLE.total_s(length) == pytest.approx(simulate(length), rel=1e-9)


def test_the_remaining_time_excludes_a_cached_prefix():
    assert TABLE.remaining_s(50_000, 20_000) == pytest.approx(
        TABLE.total_s(50_000) - TABLE.total_s(20_000)
    )
    assert TABLE.remaining_s(50_000, 50_000) == 0.0
    assert TABLE.remaining_s(10, 20) == 0.0
    # The second half of a prompt costs more than the first, as its chunks attend to more tokens.
    assert TABLE.remaining_s(100_000, 50_000) > TABLE.total_s(50_000)


def test_a_prompt_is_priced_even_if_no_chunk_meets_the_target():
    table = PrefillTable.build(lambda c, k: 1.0, target_s=0.02, max_tokens=4096)
    assert table.total_s(4096) == pytest.approx(4096 / 32)


@settings(max_examples=examples(100))
@given(
    rises=st.lists(st.sampled_from([0.0, 0.0, 1e-4, 0.3, float("inf")]), min_size=1, max_size=300),
    limit_s=st.floats(-0.1, 0.5),
    step=st.integers(1, 40),
)
def test_the_largest_chunk_of_any_increasing_function_is_found_in_few_calls(rises, limit_s, step):
    """The function may have flat parts, jumps and infinities; three binary searches suffice."""
    curve = list(accumulate(rises))
    calls = []

    def seconds(tokens: int) -> float:
        calls.append(tokens)
        return curve[tokens - 1]

    cap = len(curve)
    sizes = {cap, *range(step, cap, step)}
    expected = max((s for s in sizes if curve[s - 1] <= limit_s), default=0)
    assert largest_chunk(seconds, limit_s, cap, step) == expected
    assert len(calls) <= 3 * (cap // step).bit_length() + 2
