"""A second policy beside the first: what it would choose is reported, and changes nothing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_director import request

from laar.core.comparison import Comparison
from laar.core.cost import CostWeights
from laar.core.decision import Completion
from laar.core.policy import Policy
from laar.policies import POLICY_NAMES, build_policies
from laar.prefix.beliefs import PrefixBeliefs
from support.directors import director_of

ENDED = Completion(status=200, cause="complete", latency_s=1.0)
ADDRESSES = [f"10.0.0.{n}:80" for n in range(1, 5)]


class Broken:
    def score(self, _view):
        raise ZeroDivisionError


def decisions(compared, seed=1, share=1.0, policy="laar", count=40):
    """Return the director and its decisions on conversations whose answers end now and then."""
    beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 20)
    d = director_of(*ADDRESSES, seed=seed, policy=policy, prefixes=beliefs)
    if compared is not None:
        d.comparison = Comparison(policy=compared, share=share, rng=random.Random(seed))
    rng, made = random.Random(seed), []
    for n in range(count):
        text = f"talk {rng.randrange(6)} " + "of something " * 300
        made.append(d.decide(request("m", text + " and more" * rng.randrange(9)), float(n)))
        if rng.random() < 0.6:
            d.settle(made[rng.randrange(len(made))], ENDED)
    return d, made


def named(name, **weights):
    return build_policies(CostWeights(**weights))[name]


@settings(max_examples=30)
@given(
    st.sampled_from([*POLICY_NAMES, "broken"]), st.sampled_from(POLICY_NAMES), st.integers(0, 99)
)
def test_no_policy_beside_another_changes_a_decision(other, policy, seed):
    broken = Policy(name="broken", scorers=[(Broken(), 1.0)])
    compared = broken if other == "broken" else named(other)
    d, made = decisions(compared, seed, policy=policy)
    _, alone = decisions(None, seed, policy=policy)
    assert [of.address for of in made] == [of.address for of in alone]
    assert [of.scores.tolist() for of in made] == [of.scores.tolist() for of in alone]
    counts = d.comparison.counts
    assert counts.total() == len(made)
    assert counts["failed"] == (len(made) if other == "broken" else 0)
    if other == policy and policy in ("laar", "least-loaded", "round-robin"):  # others draw
        assert counts["other"] == 0


def test_the_choice_and_the_seconds_of_least_loaded_are_reported():
    d, made = decisions(named("least-loaded"))
    for of in made:
        found, load = of.flight.compared, of.view.in_flight
        assert found.differs == (load[of.position] > load.min())
        at = of.view.slots.tolist().index(found.slot)
        cost_s = of.view.terms.cost_s
        assert load[at] == load.min()
        assert found.more_s == cost_s[at] - cost_s[of.position]
        assert found.more_s >= 0.0
        assert found.saved_s is None  # it computes no seconds
    assert 0 < d.comparison.counts["other"] < len(made)
    assert d.comparison.seconds["serving"] == pytest.approx(
        sum(of.flight.compared.more_s for of in made)
    )


def test_seconds_by_its_own_cost_are_those_before_the_request_is_counted():
    _, made = decisions(named("laar"), policy="least-loaded")
    for of in made:
        found = of.flight.compared
        assert found.more_s is None
        assert found.saved_s >= 0.0
    # On an empty fleet all endpoints are equal, unless the request itself were counted.
    assert made[0].flight.compared.saved_s == 0.0


def test_a_share_of_the_decisions_is_compared():
    d, made = decisions(named("least-loaded"), share=0.25, count=400)
    assert 60 < d.comparison.counts.total() < 140
    assert d.comparison.counts.total() == sum(of.flight.compared is not None for of in made)


def test_requests_without_a_choice_are_not_compared():
    d = director_of(ADDRESSES[0])
    d.comparison = Comparison(policy=named("random"), share=1.0, rng=random.Random(1))
    assert d.decide(request("m"), 0.0).flight.compared is None
    assert d.comparison.counts.total() == 0
