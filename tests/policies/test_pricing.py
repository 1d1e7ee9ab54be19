"""The formula of the cost: each price under its own name, one by one and over arrays."""

import math
from inspect import signature

import numpy as np
import pytest

from laar.core.cost import CostWeights
from laar.core.engine_model import Constants
from laar.policies.laar.pricing import Candidate, Fleet, _formula, price, price_few

NOW = 5.0
FLEET = Fleet(weights=CostWeights(), rate=0.0, mean_work_s=0.0, ever_full=False, mean_load=0.0)
ENGINE = Constants(
    base_s=0.1,
    read=2.0,
    slowed=0.5,
    waits=1.0,
    turns=0.25,
    answer_s=3.0,
    beside_s=0.2,
    bend=0.0,
    slots=math.inf,
)
CANDIDATE = Candidate(
    tokens=1000.0,
    cached_tokens=400.0,
    seconds_per_token=0.001,
    in_flight=2.0,
    rtt_s=0.05,
    again=0.5,
    crowded=0.0,
    ahead_s=0.7,
    since=NOW,
    free_at=NOW,
    load=0.0,
    came=0.0,
    engine=ENGINE,
)
BY_HAND = {
    "base_s": 0.1 + 3.0,
    "read_s": 1.2,
    "queue_s": 1.2 + 0.7 + 0.2,  # two others slow the prompt, one is ahead, both slow the answer
    "ttft_s": 0.05 + 0.1 + 2.4 + 0.7,
    "latency_s": 3.25 + 3.2,
    "own_s": 2 * (2.5 + 0.75) + 3.2,
    "others_s": 1.8 + 3.3 + 0.2,
    "total_s": 9.7 + 5.3,
    "copy_s": 2.4 + 1.8 + 3.3,
    "evicted_s": 0.5 * (2 * 2.4 + 1.8),
}


def over(one):
    """The same as arrays, of two candidates."""
    arrays = [np.full(2, each) for each in one if not isinstance(each, Constants)]
    return Candidate(*arrays, engine=Constants(*[np.full(2, each) for each in one.engine]))


def test_each_price_has_the_name_of_what_it_is():
    one = price_few(FLEET, over(CANDIDATE), [ENGINE] * 2, NOW, None)
    many = price(FLEET, over(CANDIDATE), NOW, None)
    assert one._fields == many._fields == tuple(BY_HAND)
    for name, seconds in BY_HAND.items():
        assert getattr(one, name).tolist() == pytest.approx([seconds] * 2), name
        assert getattr(many, name).tolist() == getattr(one, name).tolist(), name


@pytest.mark.parametrize(
    ("changed", "name", "seconds"),
    [
        ({"cached_tokens": 1000.0}, "read_s", 0.0),
        ({"rtt_s": 1.05}, "ttft_s", 4.25),
        ({"ahead_s": 0.0}, "queue_s", 1.4),
        ({"again": 0.0}, "evicted_s", 0.0),
        ({"in_flight": 0.0}, "others_s", 0.5 * 2.4),
        ({"engine": ENGINE._replace(answer_s=0.0)}, "base_s", 0.1),
    ],
)
def test_each_input_goes_where_its_name_says(changed, name, seconds):
    one = CANDIDATE._replace(**changed)
    for priced in (
        price_few(FLEET, over(one), [one.engine] * 2, NOW, None),
        price(FLEET, over(one), NOW, None),
    ):
        assert getattr(priced, name).tolist() == pytest.approx([seconds] * 2)


def test_the_formula_takes_a_candidate_in_its_order():
    assert tuple(signature(_formula).parameters)[4:] == Candidate._fields
