"""The director: who may serve, what is reserved, and what happens when a part fails."""

import random

import numpy as np
import pytest

from laar.core.beliefs import PrefixBeliefs
from laar.core.cost import CostWeights
from laar.core.decision import Completion, DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointSpec, EndpointTable, Reading
from laar.core.filters import FilterSettings
from laar.core.interfaces import NoPrefixes, PlainAssessor
from laar.core.policy import Policy
from laar.core.request import Api, Request
from laar.errors import RequestError
from laar.policies import POLICY_NAMES, build_policies

OK = Completion(status=200, cause="complete", latency_s=1.0)
FAILED = Completion(status=503, cause="complete", latency_s=1.0)


def director(*endpoints, settings=None, **parts):
    table = EndpointTable()
    table.replace(
        "test",
        [EndpointSpec(address=address, models=tuple(models)) for address, *models in endpoints],
    )
    return Director(
        table,
        parts.pop("policies", build_policies(CostWeights())),
        settings or DirectorSettings(),
        rng=random.Random(7),
        **parts,
    )


def request(model="auto", text="hello " * 50, **fields):
    return Request(
        id="r",
        api=Api.CHAT,
        model=model,
        spans=("\x1euser\x1f", text),
        question=text,
        chars=len(text),
        **fields,
    )


FLEET = (("10.0.0.1:80", "m1", "shared"), ("10.0.0.2:80", "m2", "shared"), ("[::1]:80", "m3"))


def test_a_concrete_name_restricts_the_choice():
    d = director(*FLEET)
    assert {d.decide(request("m2"), 0.0).address for _ in range(10)} == {"10.0.0.2:80"}
    shared = {d.decide(request("shared"), 0.0).address for _ in range(30)}
    assert shared == {"10.0.0.1:80", "10.0.0.2:80"}


@pytest.mark.parametrize("quadratic", [2_000.0, 200_000.0])
def test_what_was_reserved_is_given_back_whatever_was_changed_meanwhile(quadratic):
    d = director(*FLEET, settings=DirectorSettings(quadratic_tokens=20_000.0))
    text = "hello " * 2000
    moved, before = d.decide(request(text=text), 0.0), d.decide(request(text=text), 0.0)
    d.use(DirectorSettings(quadratic_tokens=quadratic, policy="random"), d.policies)
    after = d.decide(request(text=text), 0.0)
    assert after.policy == "random"
    d.served_by(moved, next(a for a, *_ in FLEET if a != moved.address))
    for decision in (before, moved, after):
        d.settle(decision, OK)
    assert d.table.queued_tokens == pytest.approx(0.0)
    assert not d.table.in_flight.any()


def test_aliases_and_filters_change_with_the_settings():
    d = director(*FLEET)
    d.table.read("10.0.0.1:80", Reading(waiting=9.0), 0.0)
    few = DirectorSettings(aliases={"few": ("m1", "m2")}, filters=FilterSettings(max_waiting=3))
    assert "10.0.0.1:80" in {d.decide(request("shared"), 0.0).address for _ in range(20)}
    d.use(few, d.policies)
    assert {d.decide(request("few"), 0.0).address for _ in range(20)} == {"10.0.0.2:80"}
    with pytest.raises(RequestError, match="does not exist"):
        d.decide(request("auto"), 0.0)


def test_a_name_that_nobody_serves_is_a_404_and_never_echoes_more_than_200_characters():
    with pytest.raises(RequestError) as refused:
        director(*FLEET).decide(request("x" * 5000), 0.0)
    assert refused.value.status == 404
    assert len(str(refused.value)) < 300


def test_the_body_is_rewritten_only_for_an_endpoint_that_does_not_know_the_name():
    d = director(("10.0.0.1:80", "m1", "auto"))
    assert d.decide(request("auto"), 0.0).rewrite is None
    d = director(("10.0.0.1:80", "m1"))
    assert d.decide(request("auto"), 0.0).rewrite == "m1"


def test_an_alias_stands_for_the_models_listed():
    settings = DirectorSettings(aliases={"small": ("m2", "m3")})
    d = director(*FLEET, settings=settings)
    assert {d.decide(request("small"), 0.0).model for _ in range(20)} == {"m2", "m3"}


@pytest.mark.parametrize(
    ("subset", "reached"),
    [
        ({"10.0.0.2:80"}, {"10.0.0.2:80"}),
        ({"10.0.0.2"}, {"10.0.0.2:80"}),
        ({"[::1]:80"}, {"[::1]:80"}),
        ({"::1"}, {"[::1]:80"}),
        ({"[::1]", "10.0.0.1"}, {"[::1]:80", "10.0.0.1:80"}),
    ],
)
def test_a_subset_hint_is_honoured_with_and_without_ports(subset, reached):
    d = director(*FLEET)
    hint = frozenset(subset)
    assert {d.decide(request(subset=hint), 0.0).address for _ in range(30)} == reached


@pytest.mark.parametrize("subset", [set(), {"10.0.0.2:81"}, {"9.9.9.9"}])
def test_a_subset_that_names_nobody_is_a_503(subset):
    with pytest.raises(RequestError) as refused:
        director(*FLEET).decide(request(subset=frozenset(subset)), 0.0)
    assert (refused.value.status, refused.value.reason) == (503, "no-candidates")


def test_fallbacks_answer_to_the_name_the_body_will_carry():
    d = director(("a:1", "m1"), ("b:1", "m1"), ("c:1", "m2"), ("d:1", "m1"))
    decision = d.decide(request("m1"), 0.0)
    assert set(decision.fallbacks) | {decision.address} == {"a:1", "b:1", "d:1"}
    rewritten = d.decide(request("auto", subset=frozenset({"a", "c"})), 0.0)
    assert rewritten.fallbacks == ()


def test_a_burst_spreads_because_each_decision_counts_at_once():
    d = director(("a:1", "m"), ("b:1", "m"), ("c:1", "m"), ("d:1", "m"))
    for i in range(100):
        d.decide(request(text=f"{i} " + "x" * 1000), 0.0)
    assert d.table.in_flight[d.table.active].tolist() == [25.0] * 4


def test_settling_twice_releases_once():
    d = director(("a:1", "m"))
    first, second = d.decide(request(), 0.0), d.decide(request(), 0.0)
    d.settle(first, OK)
    d.settle(first, FAILED)
    assert d.table.in_flight[0] == 1
    d.settle(second, OK)
    assert d.table.queued_tokens[0] == 0


def test_a_retry_goes_to_another_model_until_all_are_tried():
    d = director(*FLEET)
    tried, models = "", []
    for _ in range(3):
        decision = d.decide(request(tried=tried), 0.0)
        models.append(decision.model)
        tried = ",".join(decision.tried)
    assert sorted(models) == ["m1", "m2", "m3"]
    assert decision.exhausted


def test_a_policy_without_retry_knowledge_never_says_exhausted():
    d = director(("a:1", "m"))
    assert d.decide(request(), 0.0).exhausted
    assert not d.decide(request(policy="random"), 0.0).exhausted


@pytest.mark.parametrize("tried", ["nobody," * 5000, "\x00\xff", ",,,", "m1" * 10_000, "m1," * 500])
def test_an_absurd_tried_list_is_cut_and_never_refused(tried):
    d = director(*FLEET)
    decision = d.decide(request(tried=tried), 0.0)
    assert len(decision.tried) <= 64
    assert set(decision.tried) <= {"m1", "m2", "m3"}


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_decides_on_a_fleet_of_which_nothing_is_known(policy):
    d = director(*FLEET)
    decision = d.decide(request(policy=policy), 0.0)
    assert decision.policy == policy
    assert decision.reason == {"llm-router": "fallback-least-loaded"}.get(policy, policy)
    assert decision.address in {address for address, *_ in FLEET}


def test_a_scorers_reason_is_given_only_for_its_own_first_choice():
    d = director(*FLEET, prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 20))
    held = d.decide(request(policy="llm-router"), 0.0)
    again = d.decide(request(policy="llm-router"), 0.0)
    assert (again.slot, again.reason) == (held.slot, "longest-prefix")
    full = d.decide(request(policy="llm-router"), 0.0, lambda view: view.slots != held.slot)
    assert full.slot != held.slot
    assert full.reason == "llm-router"


def test_an_unknown_policy_is_the_settings_policy():
    assert director(*FLEET).decide(request(policy="nonsense"), 0.0).policy == "laar"


def test_saturated_endpoints_are_passed_over_unless_all_are():
    d = director(("a:1", "m"), ("b:1", "m"))
    d.table.read("a:1", Reading(waiting=500.0, kv_usage=0.5), 100.0)
    d.table.read("b:1", Reading(waiting=0.0, kv_usage=0.5), 100.0)
    assert {d.decide(request(text="x"), 101.0).address for _ in range(20)} == {"b:1"}
    d.table.read("b:1", Reading(waiting=0.0, kv_usage=1.0), 100.0)
    assert {d.decide(request(text="x"), 101.0).address for _ in range(60)} == {"a:1", "b:1"}


def test_stale_readings_lock_nobody_out():
    d = director(("a:1", "m"), ("b:1", "m"))
    d.table.read("a:1", Reading(waiting=500.0), 0.0)
    assert "a:1" in {d.decide(request(text="x" * 500), 1000.0).address for _ in range(20)}


def test_an_unreachable_endpoint_is_passed_over_unless_all_are():
    d = director(("a:1", "m"), ("b:1", "m"))
    for _ in range(3):
        d.table.round_trip("a:1", None, 0.0)
    assert {d.decide(request(), 0.0).address for _ in range(10)} == {"b:1"}
    for _ in range(3):
        d.table.round_trip("b:1", None, 0.0)
    assert d.decide(request(), 0.0)


def test_an_unknown_round_trip_is_not_a_short_one():
    d = director(("far:1", "m"), ("unknown:1", "m"), ("near:1", "m"))
    d.table.round_trip("far:1", 0.4, 0.0)
    d.table.round_trip("near:1", 0.01, 0.0)
    assert d.decide(request(), 0.0).address == "near:1"


class Broken(NoPrefixes, PlainAssessor):
    """Fails in everything."""

    def assess(self, *_):
        raise ZeroDivisionError

    def chain(self, *_):
        raise KeyError

    def score(self, _):
        raise ValueError


class NotFinite:
    """A scorer gone wrong without an exception."""

    def score(self, view):
        return np.full(len(view.slots), np.nan)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"assessor": Broken()}, "degraded-assessor"),
        ({"prefixes": Broken()}, "degraded-prefixes"),
        ({"policies": {"laar": Policy(name="laar", scorers=[(Broken(), 1)])}}, "degraded-scorer"),
        (
            {"policies": {"laar": Policy(name="laar", scorers=[(NotFinite(), 1)])}},
            "degraded-scorer",
        ),
    ],
)
def test_a_part_that_fails_degrades_the_decision_and_says_so(parts, reason):
    d = director(*FLEET, **parts)
    decision = d.decide(request(), 0.0)
    assert decision.reason == reason
    assert d.degraded[reason.removeprefix("degraded-")] >= 1
    d.settle(decision, OK)
    assert not d.table.in_flight.any()


def test_whoever_watches_may_fail_and_costs_nothing():
    d = director(*FLEET, on_decided=lambda _decision: 1 / 0, on_settled=lambda *_: 1 / 0)
    decision = d.decide(request(), 0.0)
    assert d.table.in_flight.sum() == 1
    d.settle(decision, OK)
    assert not d.table.in_flight.any()
    assert d.degraded["watching"] == 2


def test_a_prompt_comes_back_to_where_its_prefix_is_and_a_failed_one_is_forgotten():
    beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 20)
    d = director(("a:1", "m"), ("b:1", "m"), ("c:1", "m"), prefixes=beliefs)
    text = "the same long beginning " * 400
    first = d.decide(request(text=text), 0.0)
    d.settle(first, OK)
    again = [d.decide(request(text=text + f" turn {i}"), 0.0) for i in range(3)]
    assert again[0].address == first.address
    assert again[0].uncached_tokens < 0.1 * again[0].tokens
    for decision in again:
        d.settle(decision, OK)
    other = d.decide(request(text="other " * 2000), 0.0)
    d.settle(other, FAILED)
    retried = d.decide(request(text="other " * 2000), 0.0)
    assert retried.uncached_tokens == retried.tokens


def test_salts_share_nothing():
    d = director(("a:1", "m"), prefixes=PrefixBeliefs(key=b"k", max_bytes=1 << 20))
    d.settle(d.decide(request(salt="one"), 0.0), OK)
    assert d.decide(request(salt="two"), 0.0).uncached_tokens > 0


def test_an_opaque_request_goes_to_any_endpoint_and_is_counted():
    d = director(*FLEET)
    opaque = Request(id="r", api=Api.OPAQUE)
    decisions = [d.decide(opaque, 0.0) for _ in range(60)]
    assert {x.address for x in decisions} == {address for address, *_ in FLEET}
    for decision in decisions:
        d.settle(decision, OK)
    assert not d.table.in_flight.any()
