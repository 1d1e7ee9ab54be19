"""Other routers' policies, compared with a second implementation of each rule and with examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import entry_points

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.core.cost import CostWeights
from laar.core.interfaces import Scorer, View
from laar.errors import SettingError
from laar.policies import build_policies
from laar.testing import make_view
from laar_lab.policies.aibrix import LeastRequest, PrefixCache
from laar_lab.policies.dynamo import Dynamo
from laar_lab.policies.gorgo_baselines import LeastLoad
from laar_lab.policies.llm_d_latency import llm_d_latency
from laar_lab.policies.llm_router import REASONS, PrefixAware
from laar_lab.policies.sglang import CacheAware, Lmetric, PowerOfTwo, SessionsFirst, Vetoed
from laar_lab.policy_text import parse_policy
from support.conformance import check_all
from support.exploring import examples
from support.views import chosen, view_of

NAMES = sorted(
    point.name
    for point in entry_points(group="laar.policies")
    if point.value.startswith("laar_lab.")
)


@pytest.mark.parametrize("name", NAMES)
def test_each_policy_of_laar_lab_keeps_the_contract(name: str) -> None:
    # These two use a hash modulo the number of candidates, or a random choice.
    symmetric = name not in {"simple-session-affinity", "p2c"}
    check_all(lambda: build_policies(CostWeights(), {name: {}})[name], symmetric=symmetric)


def test_parameters_reach_the_policies_and_wrong_ones_are_reported() -> None:
    view = view_of([900, 0], [9, 0])
    for text, first in (
        ("smg", 0),
        ("smg:balance_abs_threshold=8", 1),
        ("smg:cache_threshold=1", 1),
    ):
        name, values = parse_policy(text)
        policy = build_policies(CostWeights(), {name: values})[name]
        assert policy.order(policy.score(view), view, ())[0] == first, text
    for wrong in ("smg:x=1", "smg:cache_threshold=a", "lmetric:a=1"):
        with pytest.raises(SettingError):
            parse_policy(wrong)


loads = st.lists(st.integers(0, 12).map(float), min_size=4, max_size=4)
matches = st.lists(st.sampled_from([0.0, 8.0, 16.0, 400.0, 1000.0]), min_size=4, max_size=4)


@given(cached=matches, in_flight=loads)
@settings(max_examples=examples(60))
def test_lmetric_chooses_the_smallest_product(cached: list[float], in_flight: list[float]) -> None:
    view = view_of(cached, in_flight)
    products = [(1000 - c) * (n + 1) for c, n in zip(cached, in_flight, strict=True)]
    assert products[chosen(Lmetric(), view)] == min(products)


@given(in_flight=loads, running=loads)
@settings(max_examples=examples(60))
def test_least_request_believes_the_larger_count(
    in_flight: list[float], running: list[float]
) -> None:
    counts = [max(pair) for pair in zip(in_flight, running, strict=True)]
    view = view_of([0.0] * 4, in_flight, running=running)
    assert counts[chosen(LeastRequest(), view)] == min(counts)


@given(cached=matches, running=loads)
@settings(max_examples=examples(100))
def test_aibrix_chooses_the_best_match_that_is_not_overloaded(
    cached: list[float], running: list[float]
) -> None:
    first = chosen(PrefixCache(), view_of(cached, [0.0] * 4, running=running))
    limit = np.mean(running) + np.std(running)
    fit = [i for i in range(4) if cached[i] > 0 and running[i] <= limit]
    if max(running) - min(running) > 8 or not fit:
        assert running[first] == min(running)
    else:
        best = max(cached[i] for i in fit)
        assert cached[first] == best
        assert running[first] == min(running[i] for i in fit if cached[i] == best)


def test_sglang_switches_to_load_if_unbalanced_or_without_a_match() -> None:
    assert chosen(CacheAware(), view_of([900, 0], [50, 0])) == 0
    assert chosen(CacheAware(), view_of([900, 0], [65, 0])) == 1, "the difference of 65 is over 64"
    assert chosen(CacheAware(), view_of([900, 0], [300, 210])) == 0, "300 is within 1.5 of 210"
    assert chosen(CacheAware(), view_of([300, 0], [5, 4])) == 1, "300 of 1000 is not above 0.3"
    assert chosen(CacheAware(), view_of([301, 0], [5, 4])) == 0


def session_view(session: str, cached: list[float], in_flight: list[float], now: float) -> View:
    view = view_of(cached, in_flight)
    view.request = replace(view.request, session=session)
    view.now = now
    return view


def test_vllm_router_prefers_a_known_session_to_a_prefix() -> None:
    rule = CacheAware()
    policy = SessionsFirst(rule, rule.out_of_balance)

    def sent_to(session: str, cached: list[float], in_flight: list[float], now: float) -> int:
        return chosen(policy, session_view(session, cached, in_flight, now))

    assert sent_to("one", [0, 900], [0, 0], 0.0) == 1
    assert sent_to("one", [900, 0], [0, 9], 10.0) == 1, "its session is at this endpoint"
    assert sent_to("two", [900, 0], [0, 9], 10.0) == 0
    assert sent_to("", [900, 0], [0, 9], 10.0) == 0
    assert sent_to("one", [900, 0], [0, 100], 20.0) == 0, "the load is out of balance"
    assert sent_to("one", [0, 900], [0, 0], 30.0) == 0, "the session stays there"
    assert sent_to("one", [0, 900], [0, 0], 3700.0) == 1, "the session is forgotten after an hour"


def test_a_sticky_session_stays_under_any_load() -> None:
    policy = SessionsFirst(LeastRequest())
    assert chosen(policy, session_view("one", [900, 0], [5, 4], 0.0)) == 1
    assert chosen(policy, session_view("one", [900, 0], [0, 999], 10.0)) == 1
    assert chosen(policy, session_view("two", [900, 0], [5, 999], 10.0)) == 0


def test_a_vetoed_endpoint_is_chosen_only_if_all_are_vetoed() -> None:
    rule = Vetoed(CacheAware())
    for waiting, kv_usage, first in (
        ([7.0, 0.0], [0.79, 0.1], 0),
        ([8.0, 0.0], [0.1, 0.1], 1),
        ([0.0, 0.0], [0.8, 0.1], 1),
        ([9.0, 0.0], [0.1, 0.9], 0),
        ([None, None], [None, None], 0),
    ):
        view = view_of([900, 0], [1, 0], waiting=waiting, kv_usage=kv_usage)
        assert chosen(rule, view) == first, (waiting, kv_usage)


@given(
    cached=matches,
    queued=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    shared=st.sampled_from([0.0, 1.0]),
)
@settings(max_examples=examples(60))
def test_dynamo_chooses_the_smallest_sum(
    cached: list[float], queued: list[int], shared: float
) -> None:
    view = view_of(cached, [0.0] * 4, queued=[100.0 * n for n in queued])
    for slot, n in enumerate(queued):
        view.table.queued_uncached_tokens[slot] = 30.0 * n
        view.table.prefill_tokens[slot] = 10.0 * n
    sums = [
        2.0 * (1000 - c + 10 * n) + 30 * n + shared * 70 * n
        for c, n in zip(cached, queued, strict=True)
    ]
    rule = Dynamo(overlap_weight=2.0, shared_weight=shared)
    assert sums[chosen(rule, view)] == pytest.approx(min(sums))


@pytest.mark.parametrize(
    ("cached", "in_flight", "rtt_s", "scored"),
    [
        ([995, 850, 0], [1, 1, 1], [0, 0, 0], {0}),  # one holds nearly all of the prompt
        ([900, 850, 0], [1, 1, 1], [0, 0, 0], {0, 1}),  # two hold most of the prompt
        ([900, 850, 0], [0, 1, 0], [0, 0, 0], {0}),  # two hold most of it; the idle one is chosen
        ([700, 0, 0], [1, 1, 1], [0, 0, 0], {0, 1, 2}),
        ([995, 0, 0], [1, 1, 1], [5, 0, 0], {0}),
        ([995, 0, 0], [1, 1, 1], [7, 0, 0], {0, 1, 2}),  # the first would answer over 5 s later
    ],
)
def test_llm_d_stays_with_the_cache_up_to_a_limit(
    cached: list[float], in_flight: list[float], rtt_s: list[float], scored: set[int]
) -> None:
    view = make_view(
        3, cached_tokens=cached, in_flight=in_flight, rtt_s=rtt_s, seconds_per_token=1e-3
    )
    assert set(llm_d_latency().score(view).nonzero()[0].tolist()) == scored


def test_llm_d_draws_by_predicted_latency() -> None:
    policy = llm_d_latency()
    view = view_of([700, 350, 0], [1, 1, 1])
    scores = policy.score(view)
    assert scores == pytest.approx([1.0, 0.5, 0.01], abs=0.01)
    draws = Counter(policy.order(scores, view, ())[0] for _ in range(600))
    assert draws[0] > draws[1] > draws[2]
    best = llm_d_latency(drawn=0.0)
    assert {best.order(scores, view, ())[0] for _ in range(20)} == {0}
    assert set(policy.score(view_of([0] * 3, [0] * 3)).tolist()) == {1.0}


@pytest.mark.parametrize(
    ("cached", "in_flight", "reason", "endpoints"),
    [
        ([160, 80, 0], [7, 0, 0], "longest-prefix", {0}),
        ([160, 80, 0], [8, 3, 0], "spilled-from-saturated", {1}),
        ([15, 0, 0], [4, 2, 3], "fallback-least-loaded", {1}),
        ([160, 80, 0], [9, 8, 3], "spilled-fallback-least-loaded", {2}),
        ([160, 160, 0], [3, 2, 0], "longest-prefix", {1}),
    ],
)
def test_llm_router_gives_its_four_reasons(
    cached: list[float], in_flight: list[float], reason: str, endpoints: set[int]
) -> None:
    scorer = PrefixAware(saturation_inflight=8)
    view = view_of(cached, in_flight)
    assert chosen(scorer, view) in endpoints
    assert scorer.reasons == Counter({reason: 1})
    assert reason in REASONS


def spread_of(scorer: Scorer) -> Counter[int]:
    """Return where 200 requests without a match go on four idle workers."""
    return Counter(chosen(scorer, view_of([0.0] * 4, [0.0] * 4, seed=s)) for s in range(200))


@pytest.mark.parametrize("make", [Lmetric, LeastRequest, LeastLoad, PrefixCache, CacheAware])
def test_ties_are_broken_at_random(make: Callable[[], Scorer]) -> None:
    spread = spread_of(make())
    assert len(spread) == 4
    assert max(spread.values()) <= 80


def test_p2c_chooses_the_better_of_two_and_never_the_worst_of_three() -> None:
    policy = PowerOfTwo()
    taken = Counter(chosen(policy, view_of([0, 0, 0], [1, 5, 9], seed=seed)) for seed in range(600))
    assert taken[2] == 0
    assert 0.6 < taken[0] / 600 < 0.73, "the best of three is drawn in two out of three cases"
