"""Cost models compared with closed forms: the limits of the roofline, and sums over a batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from laar.errors import SettingError
from laar_lab.sim.engine import LinearCost, RooflineCost, Work, load_hardware, load_model
from laar_lab.sim.engine.roofline import KV_GROUP_TOKENS

H100 = load_hardware("h100")
LLAMA = load_model("llama-3-8b")
MOE = load_model("qwen3.5-35b-a3b")


def chunk(tokens: int, context: int, groups: int = 1) -> Work:
    work = Work()
    work.add_chunk(tokens, context, groups)
    return work


def decodes(count: int, context: int) -> Work:
    work = Work()
    work.add_decodes(count, context)
    return work


def test_attention_counts_each_query_and_key_pair() -> None:
    """A compute-bound chunk takes 4 * layers * width operations for each pair."""
    pairs = sum(position + 0.5 for position in range(5000, 5600))
    flops = 4 * LLAMA.layers * LLAMA.heads * LLAMA.head_dim * pairs
    expected = flops / (H100.bf16_flops * H100.attention_efficiency)
    assert RooflineCost(H100, LLAMA).attention_s(chunk(600, 5000)) == pytest.approx(expected)


def test_the_costs_of_chunks_add_up_to_the_whole_prompt() -> None:
    """The number of query and key pairs does not depend on how a prompt is split."""
    whole = chunk(1000, 0).pairs
    cuts = [0, 16, 400, 999, 1000]
    assert sum(chunk(b - a, a).pairs for a, b in pairwise(cuts)) == pytest.approx(whole)


@pytest.mark.parametrize(
    "cost",
    [
        RooflineCost(H100, LLAMA, tensor=8, stages=2),
        RooflineCost(H100, MOE, tensor=2),
        LinearCost(
            seconds_per_token=1e-4,
            decode_s_per_token=7.5e-3,
            decode_s_per_sequence=1e-4,
            decode_s_per_context_token=1e-8,
        ),
    ],
)
def test_the_linear_decode_cost_matches_the_cost_of_decodes(
    cost: RooflineCost | LinearCost,
) -> None:
    for count, context in ((1, 10), (7, 9000), (300, 2_000_000)):
        work = decodes(count, context)
        base, slope = cost.decode_line(count)
        assert base + slope * work.decode_context == pytest.approx(cost.stage_s(work))


def test_kv_memory_is_what_the_weights_leave_free() -> None:
    tokens = RooflineCost(H100, LLAMA).kv_tokens()
    assert tokens == int((0.9 * 80e9 - 2 * LLAMA.parameters) / (2 * 32 * 8 * 128 * 2))
    with pytest.raises(SettingError, match=r"llama-3-70b does not fit 1 x h100"):
        RooflineCost(H100, load_model("llama-3-70b")).kv_tokens()


def test_impossible_configurations_are_refused() -> None:
    with pytest.raises(SettingError, match="fp8_flops"):
        RooflineCost(load_hardware("a100"), MOE)
    with pytest.raises(SettingError, match="`stages` is 0"):
        RooflineCost(H100, LLAMA, stages=0)
    with pytest.raises(SettingError, match="seconds_per_token"):
        LinearCost(seconds_per_token=0.0, decode_s_per_token=0.01)
    with pytest.raises(SettingError, match="prefill_overhead_s"):
        LinearCost(seconds_per_token=1e-4, decode_s_per_token=0.01, prefill_overhead_s=-1.0)


def test_expert_weights_are_read_only_if_a_token_chose_them() -> None:
    """One token reads the active parameters; a large batch reads them all."""
    cost = RooflineCost(H100, replace(MOE, linear_efficiency=1.0))
    bandwidth = H100.bandwidth_bytes_s * H100.memory_efficiency
    assert cost.linear_s(1) == pytest.approx(MOE.active_parameters / bandwidth)
    assert cost.linear_s(200) == pytest.approx(MOE.parameters / bandwidth, rel=0.01)


def test_tensor_parallel_divides_the_work_and_adds_collectives() -> None:
    one, eight = (RooflineCost(H100, LLAMA, tensor=degree) for degree in (1, 8))
    work = chunk(4096, 100_000)
    part = (one.stage_s(work) - H100.step_overhead_s) / 8
    latency_s = 2 * LLAMA.layers * H100.link_latency_s
    traffic_s = 2 * LLAMA.layers * 4096 * LLAMA.hidden * 2 * 2 * 7 / 8 / H100.link_bytes_s
    expected = part + H100.step_overhead_s + latency_s + traffic_s
    assert eight.stage_s(work) == pytest.approx(expected)


def test_kv_groups_are_added_as_the_context_grows() -> None:
    cost = RooflineCost(H100, LLAMA, tensor=8, kv_parallel=4)
    deep = [cost.kv_groups(groups * KV_GROUP_TOKENS) for groups in range(6)]
    assert deep == [1, 2, 3, 4, 4, 4]
    spread = cost.attention_s(chunk(512, 2_000_000, 4))
    assert spread == pytest.approx(cost.attention_s(chunk(512, 2_000_000)) / 4)
