"""Each part of the cost formula, computed by hand under its name."""

from dataclasses import replace

import numpy as np
import pytest

from laar.core.cost import AIMS
from laar.policies.laar.pricing import AFTER, Backlog, PricingInputs, price
from laar.speeds.engine_model import EndpointConstants

NOW = 5.0


def each(value):
    """Return the values for two equal candidates."""
    return np.full(2, float(value))


ENGINE = EndpointConstants(
    of=np.arange(2),
    model_id=None,
    models=("m",),
    base_s=each(0.08),
    c=each(2.0),
    e=each(0.02),
    s=each(0.5),
    cw=each(1.0),
    w=each(0.25),
    answer_s=each(3.0),
    b=each(0.1),
    q=each(0.0),
    slots=each(np.inf),
    tokens=each(100),
)
SENT = Backlog(
    ahead_s=each(0.7), since=each(NOW), free_at=each(NOW), load=each(0.0), came=each(0.0)
)
INPUTS = PricingInputs(
    aim="all",
    now=NOW,
    objective_s=None,
    tokens=each(1000),
    cached_tokens=each(400),
    seconds_per_token=each(0.001),
    in_flight=each(2),
    rtt_s=each(0.05),
    again=each(0.5),
    crowded=None,
    engine=ENGINE,
    backlog=SENT,
    rate=0.0,
    mean_work_s=0.0,
)
BY_HAND = {
    "base_s": 0.08 + 0.02 + 3.0,  # a thousand tokens are tokenized in 0.02 s
    "prefill_s": 1.2,
    "ahead_s": 0.7,
    "queue_s": 1.2 + 0.7 + 0.2,  # two others slow the prefill, one is ahead, both slow the answer
    "ttft_s": 0.05 + 0.1 + 2.4 + 0.7,
    "latency_s": 3.25 + 3.2,
    "own_s": 2 * (2.5 + 0.75) + 3.2,
    "others_s": 1.8 + 3.3 + 0.2,
    "total_s": 9.7 + 5.3,
    "copy_s": 2.4 + 1.8 + 3.3,
    "evicted_s": 0.5 * (2 * 2.4 + 1.8),
}


def test_each_field_of_a_price_matches_a_hand_calculation():
    priced = price(INPUTS)
    assert priced._fields == tuple(BY_HAND)
    for name, seconds in BY_HAND.items():
        assert getattr(priced, name).tolist() == pytest.approx([seconds] * 2), name


@pytest.mark.parametrize("aim", AIMS)
def test_an_aim_weighs_what_crowding_adds_after_first_tokens_and_who_comes_meanwhile(aim):
    during, coming = AIMS[aim]
    busy = replace(
        INPUTS, rate=2.0, again=None, backlog=SENT._replace(load=each(0.8), came=each(9))
    )
    plain, aimed = price(busy), price(replace(busy, aim=aim))
    assert aimed.ttft_s.tolist() == plain.ttft_s.tolist()
    assert aimed.latency_s.tolist() == plain.latency_s.tolist()
    own_s = 2 * (2.5 + 0.75) + 3.0 + AFTER * (3.2 / 0.2 - 3.0)
    assert aimed.own_s.tolist() == pytest.approx([own_s] * 2)
    coming_s = plain.others_s - price(replace(busy, rate=0.0)).others_s
    expected_s = during * 1.8 + AFTER * 0.2 + coming * coming_s
    assert aimed.others_s.tolist() == pytest.approx(expected_s.tolist())


def test_an_idle_fleet_has_no_aim():
    for aim in AIMS:
        assert price(replace(INPUTS, aim=aim)).total_s.tolist() == [15.0] * 2


FULL = replace(ENGINE, slots=each(2))
"""As many slots as requests in flight, so an answer of 0.1 + 3 + 2 * 0.2 s has to end first."""


@pytest.mark.parametrize(
    ("changed", "name", "seconds"),
    [
        ({"cached_tokens": each(1000)}, "prefill_s", 0.0),
        ({"rtt_s": each(1.05)}, "ttft_s", 4.25),
        ({"backlog": SENT._replace(ahead_s=each(0))}, "queue_s", 1.4),
        ({"again": each(0)}, "evicted_s", 0.0),
        ({"in_flight": each(0)}, "others_s", 0.5 * 2.4),
        ({"engine": replace(ENGINE, answer_s=each(0))}, "base_s", 0.1),
        ({"engine": FULL}, "ttft_s", 3.25 + 3.5 / 2),
        ({"engine": FULL}, "others_s", 5.3 + 2 * 4 * 3.5 / 2),
        ({"crowded": each(0.5)}, "ttft_s", 3.25 + 3.5 / 2),
        ({"crowded": each(0.5)}, "others_s", 5.3 + 2 * 3.5 / 2),
        ({"objective_s": 9.0}, "own_s", 2 * (2.5 + 0.05 * 0.75) + 3.2),
        ({"objective_s": 3.0}, "own_s", 2 * (2.5 + 0.05 * 0.5 + 4 * 0.25) + 3.2),
        ({"rate": 2.0}, "others_s", 5.3 + 1.5 * 2.4 * 2 * (0.25 * 1.3 + 0.25 * 1.2)),
    ],
)
def test_each_input_is_passed_under_its_own_name(changed, name, seconds):
    priced = price(replace(INPUTS, **changed))
    assert getattr(priced, name).tolist() == pytest.approx([seconds] * 2)
