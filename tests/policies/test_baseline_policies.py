"""The baseline policies, each against its rule written down a second time, and by example."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.core.cost import CostWeights
from laar.core.interfaces import Filter, Scorer, View
from laar.core.picker import pick
from laar.core.policy import Policy
from laar.errors import SettingError
from laar.policies import POLICY_NAMES, build_policies, parse_policy
from laar.policies.aibrix import LeastRequest, PrefixCache
from laar.policies.gorgo_baselines import LeastLoad, SimpleSessionAffinity
from laar.policies.llm_d import FewestTokens, StickyUntilSaturated, llm_d
from laar.policies.llm_router import REASONS, PrefixAware
from laar.policies.load import PowerOfTwo
from laar.policies.own import own
from laar.policies.pickers import ShuffledMaxScore, WeightedRandom
from laar.policies.registry import Kind, Registry
from laar.policies.sglang import CacheAware, Lmetric, SessionsFirst
from laar.testing import make_view


def view_of(
    cached: list[float],
    in_flight: list[float],
    *,
    queued: list[float] | None = None,
    scraped: bool = True,
    start: str = "start",
    **given: Any,
) -> View:
    """A view of as many endpoints as there are numbers."""
    given.setdefault("waiting", 0.0 if scraped else None)
    return make_view(
        len(cached),
        prompt=start,
        cached_tokens=cached,
        queued_tokens=queued or 0.0,
        in_flight=in_flight,
        rtt_s=0.0,
        seconds_per_token=1.0,
        **given,
    )


def chosen(scorer: Scorer, view: View, *filters: Filter) -> int:
    """Where the picker sends it, whose near-ties must not overrule the policy."""
    policy = Policy(name="test", scorers=[(scorer, 1.0)], filters=filters)
    kept, scores = policy.keep(view), policy.score(view)
    assert np.isfinite(scores).all()
    masks = () if kept is None else (kept,)
    return pick(scores, -view.queued_tokens, view.rng, masks)[0]


loads = st.lists(st.integers(0, 12).map(float), min_size=4, max_size=4)
matches = st.lists(st.sampled_from([0.0, 8.0, 16.0, 400.0, 1000.0]), min_size=4, max_size=4)


@given(cached=matches, in_flight=loads)
@settings(max_examples=60)
def test_lmetric_takes_the_least_product(cached: list[float], in_flight: list[float]) -> None:
    view = view_of(cached, in_flight)
    products = [(1000 - c) * (n + 1) for c, n in zip(cached, in_flight, strict=True)]
    assert products[chosen(Lmetric(), view)] == min(products)


@given(in_flight=loads, running=loads)
@settings(max_examples=60)
def test_least_request_believes_the_larger_count(
    in_flight: list[float], running: list[float]
) -> None:
    counts = [max(pair) for pair in zip(in_flight, running, strict=True)]
    view = view_of([0.0] * 4, in_flight, running=running)
    assert counts[chosen(LeastRequest(), view)] == min(counts)


@given(cached=matches, running=loads)
@settings(max_examples=100)
def test_aibrix_takes_the_best_match_that_is_not_overloaded(
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


def test_sglang_switches_to_load_when_out_of_balance_or_without_a_match() -> None:
    assert chosen(CacheAware(), view_of([900, 0], [50, 0])) == 0
    assert chosen(CacheAware(), view_of([900, 0], [65, 0])) == 1, "65 - 0 is over 64"
    assert chosen(CacheAware(), view_of([900, 0], [300, 210])) == 0, "300 is within 1.5 of 210"
    assert chosen(CacheAware(), view_of([300, 0], [5, 4])) == 1, "300 of 1000 is not above 0.3"
    assert chosen(CacheAware(), view_of([301, 0], [5, 4])) == 0


def test_llm_d_weighs_queue_kv_and_prefix_two_two_three() -> None:
    view = view_of(
        [1000, 500], [0, 0], tokens=2000, waiting=[3, 1], kv_usage=[0.5, 0.25], queued=[0, 0]
    )
    np.testing.assert_allclose(
        7 * llm_d().score(view), [2 * 0 + 2 * 0.5 + 3 * 0.5, 2 * 1 + 2 * 0.75 + 3 * 0.25]
    )


def llm_d_as_one_sum(view: View, *, queue: float, kv: float, prefix: float) -> list[int]:
    """llm-d's default profile in one piece, as laar had it before its scorers were parts."""
    waiting = view.table.waiting[view.slots]
    most = 1.0 if np.isnan(waiting).all() else float(np.nanmax(waiting)) + 1.0
    waiting = np.where(np.isnan(waiting), most, waiting)
    span = float(waiting.max() - waiting.min())
    queue_score = (waiting.max() - waiting) / span if span else np.ones(len(waiting))
    usage = view.table.kv_usage[view.slots]
    kv_score = 1.0 - np.where(np.isnan(usage), 1.0, usage)
    prefix_score = np.minimum(view.cached_tokens, 131_072.0) / np.maximum(view.tokens, 1.0)
    scores = queue * queue_score + kv * kv_score + prefix * prefix_score
    draws = [view.rng.random() for _ in scores]
    return sorted(range(len(scores)), key=lambda i: (-scores[i], draws[i]))


@given(
    state=st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, 2.0, math.nan]) | st.floats(0, 100),
            st.sampled_from([0.0, 0.5, 1.0, math.nan]) | st.floats(0, 1),
            st.sampled_from([0.0, 500.0, 1000.0]) | st.floats(0, 1000),
        ),
        min_size=1,
        max_size=8,
    ),
    seed=st.integers(0, 1000),
    weights=st.sampled_from([(2.0, 2.0, 3.0), (1.0, 0.0, 4.0), (0.0, 0.0, 0.0)]),
)
@settings(max_examples=100, deadline=None)
def test_llm_d_of_three_scorers_orders_as_the_one_sum_ties_and_all(
    state: list[tuple[float, float, float]], seed: int, weights: tuple[float, float, float]
) -> None:
    waiting, kv_usage, cached = (list(column) for column in zip(*state, strict=True))
    idle = [0.0] * len(state)
    one, two = (
        view_of(cached, idle, waiting=waiting, kv_usage=kv_usage, seed=seed) for _ in range(2)
    )
    queue, kv, prefix = weights
    policy = llm_d(queue_weight=queue, kv_weight=kv, prefix_weight=prefix)
    order = policy.order(policy.score(one), one, ())
    assert order == llm_d_as_one_sum(two, queue=queue, kv=kv, prefix=prefix)
    assert one.rng.random() == two.rng.random(), "later draws are the same too"


def test_llm_d_tells_prefixes_apart_up_to_its_cap() -> None:
    scores = llm_d().score(view_of([4096, 9000], [0, 0], tokens=10_000))
    assert scores[1] > scores[0]
    scores = llm_d().score(view_of([131_072, 200_000], [0, 0], tokens=250_000))
    assert scores[0] == scores[1]


def test_llm_ds_guide_stays_with_the_prefix_until_it_is_saturated() -> None:
    """A tenth of the prompt is new: 100 tokens there, 1,000 elsewhere."""

    def sent_to(ahead: list[float], cached: list[float], **given: float) -> int:
        view = view_of(cached, [0.0] * len(cached))
        view.seconds_per_token = np.full(len(cached), 1e-3)
        view.table.prefill_tokens[: len(ahead)] = ahead
        return chosen(FewestTokens(), view, StickyUntilSaturated(**given))

    assert sent_to([5000, 0, 0], [900, 0, 0], prefill_tokens_per_s=1000) == 0
    late = 18_001.0
    assert sent_to([late, 0, 10], [900, 0, 0], prefill_tokens_per_s=1000) == 1, "18 s too late"
    assert sent_to([late, 0, 10], [900, 0, 0]) == 0, "at 15,928 tokens a second it is one second"
    assert sent_to([late, 0, 10], [900, 0, 0], prefill_tokens_per_s=0) == 1, "as measured"
    assert sent_to([late, 0, 10], [900, 0, 0], max_ttft_penalty_ms=0, prefill_tokens_per_s=1) == 0
    assert sent_to([500, 0, 400], [900, 0, 850], prefill_tokens_per_s=1000) == 2, "fewest ahead"
    assert sent_to([200, 0, 400], [790, 0, 0], prefill_tokens_per_s=1000) == 0, "410 beats 1,000"
    assert sent_to([900, 0, 400], [790, 0, 0], prefill_tokens_per_s=1000) == 1, "none is sticky"


def test_vllm_router_knows_a_session_before_it_knows_a_prefix() -> None:
    policy = SessionsFirst()

    def sent_to(session: str, cached: list[float], in_flight: list[float], now: float) -> int:
        view = view_of(cached, in_flight)
        view.request = replace(view.request, session=session)
        view.now = now
        return chosen(policy, view)

    assert sent_to("one", [0, 900], [0, 0], 0.0) == 1
    assert sent_to("one", [900, 0], [0, 9], 10.0) == 1, "its session is there"
    assert sent_to("two", [900, 0], [0, 9], 10.0) == 0
    assert sent_to("", [900, 0], [0, 9], 10.0) == 0
    assert sent_to("one", [900, 0], [0, 100], 20.0) == 0, "out of balance"
    assert sent_to("one", [0, 900], [0, 0], 30.0) == 0, "and there it stays"
    assert sent_to("one", [0, 900], [0, 0], 3700.0) == 1, "after an hour it is forgotten"


def test_p2c_takes_the_better_of_two_and_never_the_worst_of_three() -> None:
    policy = PowerOfTwo()
    taken = Counter(chosen(policy, view_of([0, 0, 0], [1, 5, 9], seed=seed)) for seed in range(600))
    assert taken[2] == 0
    assert 0.6 < taken[0] / 600 < 0.73, "in two draws of three"


def test_parameters_reach_the_policies_and_wrong_ones_are_named() -> None:
    view = view_of([900, 0], [9, 0])
    for text, first in (
        ("smg", 0),
        ("smg:balance_abs_threshold=8", 1),
        ("smg:cache_threshold=1", 1),
    ):
        name, values = parse_policy(text)
        policy = build_policies(CostWeights(), {name: values})[name]
        assert pick(policy.score(view), -view.in_flight, view.rng)[0] == first, text
    for wrong in (
        "nobody",
        "smg:x=1",
        "smg:cache_threshold=-1",
        "smg:cache_threshold=a",
        "p2c:a=1",
    ):
        with pytest.raises(SettingError):
            parse_policy(wrong)


def test_the_page_on_policies_names_each_and_every_parameter() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text()
    registry = Registry(own(CostWeights()))
    for name in POLICY_NAMES:
        assert f"`{name}`" in page
        if name != "laar":
            for parameter, each in registry.find(Kind.POLICY, name).parameters().items():
                if isinstance(each.default, int | float) and not isinstance(each.default, bool):
                    assert f"`{parameter}` {each.default:g}" in page


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


def test_llm_router_without_a_valve_never_spills() -> None:
    scorer = PrefixAware(saturation_inflight=0)
    assert chosen(scorer, view_of([160, 0], [10_000, 0])) == 0


def spread_of(scorer: Scorer) -> Counter[int]:
    """Where 200 requests go that match nothing on four idle workers."""
    return Counter(chosen(scorer, view_of([0.0] * 4, [0.0] * 4, seed=s)) for s in range(200))


def test_llm_router_spreads_ties_and_by_index_it_would_not() -> None:
    spread = spread_of(PrefixAware())
    assert len(spread) >= 3
    assert max(spread.values()) <= 100
    for by_index in (PrefixAware(shuffle=False), PrefixAware(shuffle_fallback=False)):
        assert spread_of(by_index) == Counter({0: 200}), "the negative control"


@pytest.mark.parametrize("make", [Lmetric, LeastRequest, LeastLoad, PrefixCache, CacheAware])
def test_ties_go_to_chance(make: Callable[[], Scorer]) -> None:
    spread = spread_of(make())
    assert len(spread) == 4
    assert max(spread.values()) <= 80


def test_llm_ds_picker_gives_equals_an_even_chance_and_nothing_to_the_rest() -> None:
    picker, scores = ShuffledMaxScore(), np.array([0.5, 0.9, 0.9, 0.899])
    views = (view_of([0.0] * 4, [0.0, 5.0, 0.0, 0.0], seed=seed) for seed in range(200))
    spread = Counter(picker.order(scores, view)[0] for view in views)
    assert spread.keys() == {1, 2}, "a near-tie is none to it"
    assert 70 < spread[1] < 130, "whatever their load"


def test_weighted_random_follows_the_scores() -> None:
    picker, scores = WeightedRandom(), np.array([0.0, 0.6, 0.3, 0.1])
    views = (view_of([0.0] * 4, [0.0] * 4, seed=seed) for seed in range(1000))
    orders = [picker.order(scores, view) for view in views]
    first = Counter(order[0] for order in orders)
    assert {order[-1] for order in orders} == {0}
    assert [round(first[i] / 1000, 1) for i in range(4)] == [0.0, 0.6, 0.3, 0.1]


def test_least_load_adds_requests_and_tokens() -> None:
    view = view_of(
        [0] * 3, [0] * 3, queued=[500, 0, 400], running=[3, 1, 1], kv_usage=[0.0, 0.06, 0.0]
    )
    assert chosen(LeastLoad(), view) == 2  # 503, 601, 401


def test_simple_affinity_knows_the_beginning_and_no_session() -> None:
    scorer = SimpleSessionAffinity()
    places = {
        chosen(scorer, view_of([0] * 4, [0] * 4, start="a" * 1024 + str(i))) for i in range(9)
    }
    assert len(places) == 1, "only the first 256 tokens count"
    places = {chosen(scorer, view_of([0] * 4, [0] * 4, start=str(i))) for i in range(99)}
    assert places == {0, 1, 2, 3}
