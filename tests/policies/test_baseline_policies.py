"""The policies other than laar's own, compared with their rules and with examples."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from laar.core.cost import CostWeights
from laar.core.picker import pick
from laar.errors import SettingError
from laar.policies import POLICY_NAMES, build_policies
from laar.policies.llm_d import FewestTokens, StickyUntilSaturated, llm_d
from laar.policies.own import OWN
from laar.policies.pickers import ShuffledMaxScore, WeightedRandom
from laar.policies.registry import PartKind, find
from laar.request import Api, Request
from laar_lab.policy_text import parse_policy
from support.directors import director_of
from support.views import chosen, view_of


def test_llm_d_weighs_queue_kv_and_prefix_two_two_three() -> None:
    view = view_of(
        [1000, 500], [0, 0], tokens=2000, waiting=[3, 1], kv_usage=[0.5, 0.25], queued=[0, 0]
    )
    np.testing.assert_allclose(
        7 * llm_d().score(view), [2 * 0 + 2 * 0.5 + 3 * 0.5, 2 * 1 + 2 * 0.75 + 3 * 0.25]
    )


def test_llm_d_treats_an_endpoint_that_was_never_read_as_the_fullest() -> None:
    view = view_of([0, 0], [0, 0], waiting=[3, math.nan], kv_usage=[1.0, math.nan])
    np.testing.assert_allclose(7 * llm_d().score(view), [2, 0])


def test_llm_d_distinguishes_prefixes_up_to_its_cap() -> None:
    scores = llm_d().score(view_of([4096, 9000], [0, 0], tokens=10_000))
    assert scores[1] > scores[0]
    scores = llm_d().score(view_of([131_072, 200_000], [0, 0], tokens=250_000))
    assert scores[0] == scores[1]


def test_llm_ds_guide_stays_with_the_prefix_until_it_is_saturated() -> None:
    """A tenth of the prompt is new at the first endpoint: 100 tokens, and 1,000 elsewhere."""

    def sent_to(ahead: list[float], cached: list[float], **given: float) -> int:
        view = view_of(cached, [0.0] * len(cached))
        view.seconds_per_token = np.full(len(cached), 1e-3)
        view.table.prefill_tokens[: len(ahead)] = ahead
        return chosen(FewestTokens(), view, StickyUntilSaturated(**given))

    assert sent_to([5000, 0, 0], [900, 0, 0], prefill_tokens_per_s=1000) == 0
    late = 18_001.0
    assert sent_to([late, 0, 10], [900, 0, 0], prefill_tokens_per_s=1000) == 1, "18 s late"
    assert sent_to([late, 0, 10], [900, 0, 0]) == 0, "at 15,928 tokens per second it takes 1 s"
    assert sent_to([late, 0, 10], [900, 0, 0], prefill_tokens_per_s=0) == 1, "by the measured speed"
    assert sent_to([late, 0, 10], [900, 0, 0], max_ttft_penalty_ms=0, prefill_tokens_per_s=1) == 0
    assert sent_to([500, 0, 400], [900, 0, 850], prefill_tokens_per_s=1000) == 2, "fewest ahead"
    assert sent_to([200, 0, 400], [790, 0, 0], prefill_tokens_per_s=1000) == 0, "410 against 1,000"
    assert sent_to([900, 0, 400], [790, 0, 0], prefill_tokens_per_s=1000) == 1, "none is sticky"


def test_parameters_reach_the_policies_and_wrong_ones_are_reported() -> None:
    view = view_of([900, 0], [9, 0], waiting=[30.0, 0.0], kv_usage=0.0)
    for text, first in (
        ("llm-d", 0),
        ("llm-d:queue_weight=9", 1),
        ("llm-d:max_match_tokens=1", 1),
    ):
        name, values = parse_policy(text)
        policy = build_policies(CostWeights(), {name: values})[name]
        assert pick(policy.score(view), -view.in_flight, view.rng)[0] == first, text
    for wrong in (
        "nobody",
        "llm-d:x=1",
        "llm-d:queue_weight=-1",
        "llm-d:queue_weight=a",
    ):
        with pytest.raises(SettingError):
            parse_policy(wrong)


def test_the_page_on_policies_lists_each_policy_and_parameter() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text()
    for name in POLICY_NAMES:
        assert f"`{name}`" in page
        if name != "laar":
            for parameter, each in find(OWN, PartKind.POLICY, name).parameters().items():
                if isinstance(each.default, int | float) and not isinstance(each.default, bool):
                    assert f"`{parameter}` {each.default:g}" in page


def test_llm_ds_picker_chooses_evenly_among_only_the_best() -> None:
    picker, scores = ShuffledMaxScore(), np.array([0.5, 0.9, 0.9, 0.899])
    views = (view_of([0.0] * 4, [0.0, 5.0, 0.0, 0.0], seed=seed) for seed in range(200))
    spread = Counter(picker.order(scores, view)[0] for view in views)
    assert spread.keys() == {1, 2}, "near-ties do not count"
    assert 70 < spread[1] < 130, "load does not count"


def test_a_session_stays_at_its_endpoint_whatever_the_load_even_among_a_thousand() -> None:
    names = (f"10.0.{n >> 8}.{n & 255}:80" for n in range(1000))
    director = director_of(*names, policy="session-affinity")
    turns = [Request(id="r", api=Api.CHAT, model="m", session="s", chars=99) for _ in range(8)]
    assert len({director.decide(turn, 0.0).address for turn in turns}) == 1


@pytest.mark.long
def test_weighted_random_chooses_in_proportion_to_the_scores() -> None:
    picker, scores = WeightedRandom(), np.array([0.0, 0.6, 0.3, 0.1])
    views = (view_of([0.0] * 4, [0.0] * 4, seed=seed) for seed in range(1000))
    orders = [picker.order(scores, view) for view in views]
    first = Counter(order[0] for order in orders)
    assert {order[-1] for order in orders} == {0}
    assert [round(first[i] / 1000, 1) for i in range(4)] == [0.0, 0.6, 0.3, 0.1]
