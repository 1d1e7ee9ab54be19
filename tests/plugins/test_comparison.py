"""A second policy beside the first: what it would choose is reported, and changes nothing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.core.cost import CostWeights
from laar.core.decision import Completion
from laar.core.policy import Policy
from laar.plugins.comparison import Comparison
from laar.policies import POLICY_NAMES, build_policies
from laar.prefix.beliefs import PrefixBeliefs
from support.directors import director_of
from support.requests import request_of


def request(model="auto", text="hello " * 50, **fields):
    return request_of("\x1euser\x1f", text, model=model, chars=len(text), **fields)


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
        d.plugins.get(Comparison).use(compared, share, random.Random(seed))
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
    counts = d.plugins.get(Comparison).counts
    assert counts.total() == len(made)
    assert counts["failed"] == (len(made) if other == "broken" else 0)
    if other == policy and policy in ("laar", "least-loaded", "round-robin"):  # others draw
        assert counts["other"] == 0


def test_the_choice_and_the_seconds_of_least_loaded_are_reported():
    d, made = decisions(named("least-loaded"))
    for of in made:
        found, load = Comparison.of(of), of.view.in_flight
        assert found.differs == (load[of.position] > load.min())
        names = [of.view.table.spec(slot).key for slot in of.view.slots.tolist()]
        at = names.index(found.endpoint)
        cost_s = of.view.terms.cost_s
        assert load[at] == load.min()
        assert found.more_s == cost_s[at] - cost_s[of.position]
        assert found.more_s >= 0.0
        assert found.saved_s is None  # it computes no seconds
    assert 0 < d.plugins.get(Comparison).counts["other"] < len(made)
    assert d.plugins.get(Comparison).seconds["serving"] == pytest.approx(
        sum(Comparison.of(of).more_s for of in made)
    )


def test_seconds_by_its_own_cost_are_those_before_the_request_is_counted():
    _, made = decisions(named("laar"), policy="least-loaded")
    for of in made:
        found = Comparison.of(of)
        assert found.more_s is None
        assert found.saved_s >= 0.0
    # On an empty fleet all endpoints are equal, unless the request itself were counted.
    assert Comparison.of(made[0]).saved_s == 0.0


def test_a_share_of_the_decisions_is_compared():
    d, made = decisions(named("least-loaded"), share=0.25, count=400)
    assert 60 < d.plugins.get(Comparison).counts.total() < 140
    assert d.plugins.get(Comparison).counts.total() == sum(
        Comparison.of(of) is not None for of in made
    )


def test_requests_without_a_choice_are_not_compared():
    d = director_of(ADDRESSES[0])
    d.plugins.get(Comparison).use(named("random"), 1.0, random.Random(1))
    assert Comparison.of(d.decide(request("m"), 0.0)) is None
    assert d.plugins.get(Comparison).counts.total() == 0
