"""The demo's figures: what counts, and when a difference is one."""

import math

import numpy as np
import pytest

from laar.lab.live.answered import LIMIT_S, Contestant, sentence


def contestant(name, seconds, engine_s=None):
    return Contestant(
        name=name, seconds={str(i): s for i, s in enumerate(seconds)}, engine_s=engine_s
    )


def test_a_question_given_up_on_counts_twice_the_limit_however_soon_it_was_dropped():
    one = contestant("one", [10.0, math.inf, LIMIT_S + 1], engine_s=12.0)
    assert one.par2_s == pytest.approx((10.0 + 2 * LIMIT_S + 2 * LIMIT_S) / 3)
    assert one.within(10.0) == pytest.approx(1 / 3)
    assert one.engine_s_per_correct == pytest.approx(6.0)  # the late answer is correct as well


def test_no_correct_answer_has_no_cost_for_each():
    assert contestant("one", [math.inf], engine_s=3.0).engine_s_per_correct is None


@pytest.mark.parametrize(("factor", "said"), [(0.5, "sooner than"), (2.0, "later than")])
def test_a_difference_on_every_question_is_told_with_its_interval(factor, said):
    rng = np.random.default_rng(7)
    theirs = rng.uniform(5.0, 25.0, 60)
    text = sentence(contestant("laar", theirs * factor), contestant("other", theirs))
    assert said in text
    assert "95 % interval" in text


def test_noise_is_a_tie_in_nearly_every_draw():
    """A negative control: equal policies differ in about one draw of twenty."""
    rng = np.random.default_rng(3)
    ties = 0
    for _ in range(60):
        ours, theirs = rng.exponential(20.0, 60), rng.exponential(20.0, 60)
        ties += " tie on " in sentence(contestant("laar", ours), contestant("other", theirs))
    assert ties >= 50


def test_equal_times_are_a_tie():
    same = [3.0, math.inf]
    assert " tie on 2 questions" in sentence(contestant("laar", same), contestant("other", same))
