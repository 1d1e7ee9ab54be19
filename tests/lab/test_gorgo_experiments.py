"""GORGO's experiments at a small size."""

from statistics import mean

import pytest

from laar_lab.experiments import find_experiment
from laar_lab.experiments.gorgo_published import PublishedClimb
from laar_lab.experiments.gorgo_runs import Run, arrivals_of, run_one, sites_of
from laar_lab.tuning.windows import Observed


def test_the_climb_converges_despite_noise():
    experiment = find_experiment("gorgo-tuner")
    found = experiment.run(experiment.scope(20, quick=False)).evidence
    assert mean(found["arrives"][""].ours) >= 0.8
    assert mean(found["through-noise"][""].ours) >= 0.9


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


def test_the_published_climb_accepts_a_slightly_worse_candidate():
    climb = PublishedClimb({"w": (0.1, 10.0)}, {"w": 1.0}, seed=1)
    climb.report(-1.0)
    worse = climb.weights(0.0).values
    climb.report(-1.003)
    assert climb.best == dict(worse) != {"w": 1.0}
    worse = climb.weights(0.0).values
    climb.report(-2.0)
    assert climb.best != dict(worse)


def test_the_published_climb_uses_completions_under_any_weights():
    climb = PublishedClimb({"w": (0.1, 10.0)}, {"w": 1.0}, seed=1, window=8, hop=2)
    proposals = set()
    for _ in range(16):
        proposals.add(climb.weights(0.0).values["w"])
        climb.observe(Observed(version=1, ttft_s=1.0, e2e_s=2.0), 0.0)
        climb.observe(Observed(version=1, ttft_s=9.0, e2e_s=9.0, ok=False), 0.0)
    assert len(proposals) == 1 + (16 - 8) // 2
