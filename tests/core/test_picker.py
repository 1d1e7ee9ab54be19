"""The max-score picker: near-ties, load, random choice, and the order of fallbacks."""

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from laar.core.picker import NEAR_TIE, pick
from laar.core.policy import Policy
from laar.policies.pickers import MaxScore
from laar.testing import make_view
from support.speed import times_as_long

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(SCORES, st.integers(0, 2**32))
def test_the_pick_is_the_least_loaded_within_a_near_tie_of_the_best(scores, seed):
    scores = np.array(scores)
    load = np.array([float(i % 3) for i in range(len(scores))])
    first = pick(scores, load, random.Random(seed))[0]
    near = scores >= scores.max() - NEAR_TIE * abs(scores.max())
    assert near[first]
    assert load[first] == load[near].min()


@given(SCORES)
def test_fallbacks_are_all_others_by_score(scores):
    scores = np.array(scores)
    order = pick(scores, np.zeros(len(scores)), random.Random(0))
    assert sorted(order) == list(range(len(scores)))
    rest = scores[order[1:]]
    assert all(rest[:-1] >= rest[1:])


def test_equal_idle_candidates_share_a_burst():
    rng = random.Random(3)
    picks = Counter(pick(np.ones(4), np.zeros(4), rng)[0] for _ in range(400))
    assert len(picks) == 4
    assert max(picks.values()) < 200


MASKED = st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.booleans()), min_size=1, max_size=12)


@given(MASKED, st.integers(0, 2**32))
def test_masks_take_precedence_over_scores_in_order_of_importance(candidates, seed):
    scores = np.array([score for score, _, _ in candidates])
    masks = (
        np.array([hard for _, hard, _ in candidates]),
        np.array([soft for _, _, soft in candidates]),
    )
    order = pick(scores, np.zeros(len(scores)), random.Random(seed), masks)
    ranked = [(*(bool(mask[i]) for mask in masks), scores[i]) for i in order]
    rest = ranked[1:]
    assert rest == sorted(rest, reverse=True)
    best = max(ranked)
    assert ranked[0][:2] == best[:2], "masks take precedence over any score"
    assert ranked[0][2] >= best[2] - NEAR_TIE * best[2]


def test_a_forced_first_candidate_is_first_whatever_its_score():
    scores = np.array([0.2, 1.0, 0.5])
    assert pick(scores, np.zeros(3), random.Random(0), first=0) == [0, 1, 2]


def test_the_time_to_order_masked_candidates_grows_with_their_number():
    policy = Policy(name="p", scorers=[], picker=MaxScore())

    def orders(count: int) -> Callable[[], object]:
        view, scores, mask = make_view(count), np.linspace(0, 1, count), np.arange(count) % 2 == 0
        return lambda: policy.order(scores, view, [mask])

    assert times_as_long(orders(3000), orders(300), tries=9) < 30.0
