"""The figures of the demo, and the significance of differences."""

import math
import re

import numpy as np
import pytest

from laar_lab.kv_lookup import queries
from laar_lab.live.answered import LIMIT_S, MARKS_S, Contestant, sentence, soon
from laar_lab.live.comparison import Tally
from laar_lab.live.up import Demo
from support.outcomes import outcome


def contestant(name, seconds, engine_s=None):
    return Contestant(
        name=name, seconds={str(i): s for i, s in enumerate(seconds)}, engine_s=engine_s
    )


def test_an_abandoned_question_counts_as_twice_the_time_limit():
    one = contestant("one", [10.0, math.inf, LIMIT_S + 1], engine_s=12.0)
    assert one.par2_s == pytest.approx((10.0 + 2 * LIMIT_S + 2 * LIMIT_S) / 3)
    assert one.within(10.0) == pytest.approx(1 / 3)
    assert one.engine_s_per_correct == pytest.approx(6.0)  # the late answer counts as correct


def test_without_correct_answers_there_is_no_cost_per_answer():
    assert contestant("one", [math.inf], engine_s=3.0).engine_s_per_correct is None


@pytest.mark.parametrize(("factor", "said"), [(0.5, "less time than"), (2.0, "more time than")])
def test_a_consistent_difference_is_reported_with_its_interval(factor, said):
    rng = np.random.default_rng(7)
    theirs = rng.uniform(5.0, 25.0, 60)
    text = sentence(contestant("laar", theirs * factor), contestant("other", theirs))
    assert said in text
    assert "95 % interval" in text


def test_more_time_is_reported_with_an_interval_of_more_time():
    rng = np.random.default_rng(7)
    theirs = rng.uniform(5.0, 25.0, 60)
    text = sentence(contestant("laar", theirs * rng.uniform(1.3, 2.0, 60)), contestant("b", theirs))
    assert "more time than" in text
    assert "95 % interval +" in text
    assert "-" not in text.partition("95 % interval")[2]


@pytest.mark.parametrize("of", [1, 2, 5])
def test_a_few_questions_show_no_difference(of):
    ours, theirs = contestant("laar", [4.0] * of), contestant("other", [8.0] * of)
    for text in (sentence(ours, theirs), sentence(theirs, ours), soon(ours, [theirs])):
        assert "too few questions" in text
        assert not re.search("interval|more time|less time", text)


def test_equal_policies_are_nearly_always_reported_as_a_tie():
    """A negative control: equal policies differ in about one draw in twenty."""
    rng = np.random.default_rng(3)
    ties = 0
    for _ in range(60):
        ours, theirs = rng.exponential(20.0, 60), rng.exponential(20.0, 60)
        ties += " tie on " in sentence(contestant("laar", ours), contestant("other", theirs))
    assert ties >= 50


def test_equal_times_are_a_tie():
    same = [3.0, math.inf]
    assert " tie on 2 questions" in sentence(contestant("laar", same), contestant("other", same))


def early(share, of=60, late_s=20.0):
    """Return the times of a policy that answers `share` of the questions early, the rest late."""
    soon_s = MARKS_S[0] / 2
    return [soon_s if at < share * of else late_s for at in range(of)]


def test_a_share_that_is_lower_by_chance_is_not_reported_as_a_difference():
    text = soon(
        contestant("laar", early(0.38)),
        [contestant("a", early(0.30)), contestant("b", early(0.38)[::-1])],
    )
    assert "Within 5 s laar has 38% correct and b, the best of the others, 38%" in text
    assert "no difference beyond chance" in text


def test_fewer_early_answers_are_reported_together_with_the_time_gained():
    ours = contestant("laar", early(0.2, late_s=8.0))
    theirs = contestant("other", early(0.5, late_s=40.0))
    text = soon(ours, [theirs])
    assert "-30 points" in text
    assert "no difference" not in text
    assert "By PAR-2 it is ahead" in text
    assert "By PAR-2" not in soon(theirs, [ours])
    assert "By PAR-2" not in soon(contestant("laar", early(0.2, late_s=50.0)), [theirs])


def test_the_early_share_of_equal_policies_is_rarely_reported_as_different():
    """A negative control that compares with the best of four others each time."""
    rng = np.random.default_rng(5)
    differ = 0
    for _ in range(40):
        ours, *others = (contestant(str(n), rng.exponential(8.0, 60)) for n in range(5))
        differ += "no difference" not in soon(ours, others)
    assert differ <= 4


def answered_in(*latencies_s, served_s):
    """Return a policy's tally of one question whose attempts have these latencies."""
    [query] = queries(languages=["en"], lengths_tokens=[4096], per_cell=1)
    return Tally(
        "laar",
        results=[(query, outcome(*latencies_s, correct=True, waited_s=0.0))],
        engine_s=0.1,
        served_s=served_s,
    )


@pytest.mark.parametrize(("served_s", "busy"), [(0.58, False), (0.36, True)])
def test_the_machines_overhead_is_shown_if_it_matters(served_s, busy):
    tally = answered_in(0.2, 0.4, served_s=served_s)
    one = Contestant.of(tally, time_scale=0.05)
    assert one.machine_s == pytest.approx((0.6 - served_s) / 2 / 0.05)
    demo = Demo(tallies=[tally] * 3, contestants=[one] * 3, keep_prompts=True, time_scale=0.05)
    assert demo.rows[0]["machine_s_per_attempt"] == one.machine_s
    assert any("busy" in each for each in demo.sentences) == busy
    if busy:
        assert "--time-scale 0.15" in demo.sentences[-1]
