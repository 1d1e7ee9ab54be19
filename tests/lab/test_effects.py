"""Effects of small experiments, on seeds whose results are far from the asserted bounds."""

from __future__ import annotations

from laar_lab.experiments import many_pickers, prefill_decode


def test_pickers_that_share_find_as_much_cached_as_a_single_one() -> None:
    one, shared, alone = (
        many_pickers._run("art-x2", pickers, True, 1000)
        for pickers in (
            many_pickers.Pickers(),
            many_pickers.Pickers(4, 0.02),
            many_pickers.Pickers(4, None),
        )
    )
    assert shared["hit_rate"] > one["hit_rate"] / 1.1
    assert shared["ttft_p95_s"] < 1.1 * one["ttft_p95_s"]
    assert alone["hit_rate"] < 0.75 * one["hit_rate"]
    assert alone["ttft_p95_s"] > 1.4 * one["ttft_p95_s"]


def test_disaggregation_by_cost_beats_always_and_never() -> None:
    ours, *others = (
        prefill_decode.run_one(prefill_decode.LOADS["many talks"], rule, 10.0, 1000)["e2e_mean_s"]
        for rule in ("by cost", "always", "never")
    )
    assert ours < 0.8 * min(others)
