"""GORGO's experiments: they are listed, they run, and those about decisions alone hold."""

import pytest

from laar.lab.experiments import all_experiments, find_experiment
from laar.lab.experiments.gorgo_published import PublishedClimb
from laar.lab.experiments.gorgo_runs import Run, arrivals_of, run_one, sites_of
from laar.lab.report import dump
from laar.tuning import Sample

NAMES = (
    "gorgo-baselines",
    "gorgo-discovery",
    "gorgo-distance",
    "gorgo-heldout",
    "gorgo-live",
    "gorgo-low-reuse",
    "gorgo-reward-hack",
    "gorgo-rtt",
    "gorgo-saturation",
    "gorgo-tuner",
)


def quick(name):
    experiment = find_experiment(name)
    return experiment.run(experiment.scope(None, quick=True))


def test_all_are_listed():
    assert set(NAMES) <= set(all_experiments())


@pytest.mark.parametrize("name", ["gorgo-rtt", "gorgo-tuner"])
def test_what_needs_no_traffic_holds(name):
    report = quick(name)
    assert report.held, [check for check in report.checks if not check.held]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"gorgo-rtt", "gorgo-tuner"}))
def test_the_small_version_runs_and_gives_a_verdict(name):
    report = quick(name)
    assert report.checks
    assert dump(report)


def test_a_seed_is_one_trace_for_every_policy_and_time_stretches_it():
    run = Run(policy="laar", seed=1, time_scale=1.0, minutes=1.0)
    slow = Run(policy="random", seed=1, time_scale=2.0, minutes=1.0)
    one, two = arrivals_of(run), arrivals_of(slow)
    assert [a.prompt.blocks for a in one] == [a.prompt.blocks for a in two]
    assert [2.0 * a.at_s for a in one] == [a.at_s for a in two]


def test_a_run_says_how_much_went_to_the_nearest():
    numbers = run_one(Run(policy="round-robin", seed=1, time_scale=2.0, minutes=1.0))
    assert numbers["near_share"] == pytest.approx(1 / 3, abs=0.02)
    assert numbers["success"] == 1.0
    assert len(sites_of("gorgo-main")) == 3


def test_the_published_climb_takes_a_candidate_that_is_a_little_worse():
    climb = PublishedClimb({"w": (0.1, 10.0)}, {"w": 1.0}, seed=1)
    climb.report(-1.0)
    worse = climb.weights(0.0).values
    climb.report(-1.003)
    assert climb.best == dict(worse) != {"w": 1.0}
    worse = climb.weights(0.0).values
    climb.report(-2.0)
    assert climb.best != dict(worse)


def test_the_published_climb_looks_at_completions_whoever_decided_them():
    climb = PublishedClimb({"w": (0.1, 10.0)}, {"w": 1.0}, seed=1, window=8, hop=2)
    proposals = set()
    for _ in range(16):
        proposals.add(climb.weights(0.0).values["w"])
        climb.observe(Sample(version=1, ttft_s=1.0, e2e_s=2.0), 0.0)
        climb.observe(Sample(version=1, ttft_s=9.0, e2e_s=9.0, ok=False), 0.0)
    assert len(proposals) == 1 + (16 - 8) // 2
