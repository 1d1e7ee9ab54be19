"""GORGO's experiments at a small size."""

import pytest

from laar_lab.experiments.gorgo_runs import Run, arrivals_of, run_one, sites_of


def test_a_seed_determines_one_trace_for_all_policies_at_any_time_scale():
    run = Run(policy="laar", seed=1, time_scale=1.0, minutes=1.0)
    slow = Run(policy="random", seed=1, time_scale=2.0, minutes=1.0)
    one, two = arrivals_of(run), arrivals_of(slow)
    assert [a.prompt.blocks for a in one] == [a.prompt.blocks for a in two]
    assert [2.0 * a.at_s for a in one] == [a.at_s for a in two]


def test_a_run_reports_the_share_of_the_nearest_endpoint():
    numbers = run_one(Run(policy="round-robin", seed=1, time_scale=2.0, minutes=1.0))
    assert numbers["near_share"] == pytest.approx(1 / 3, abs=0.02)
    assert numbers["success"] == 1.0
    assert len(sites_of("gorgo-main")) == 3
