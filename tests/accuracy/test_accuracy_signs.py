"""Weak outcomes: signs in answers change P(correct) without reports."""

import random

import numpy as np
import pytest

from laar.accuracy.features import Features
from laar.accuracy.online import CAP_PER_HOUR, KAPPA, OnlineOutcomes
from laar.accuracy.reporters import SIGNS
from laar.accuracy.signs import BROKEN_CALL, CUT, FORM, PLAIN, SURE, Sign, Signs, sign_of

CELL = Features("en", 512, "qa")
RIGHT = {"good": 0.8, "fair": 0.6, "poor": 0.4}
MODELS = tuple(RIGHT)
LEVELS = 4  # signs by log-probability; three other signs come before them


def shown(right, seed, kind):
    """Return the sign of an answer, from the model's confidence or from the form of the answer."""
    if kind == "sure":
        level = seed.gauss(1.0 if right else 0.0, 1.0)
        return Sign(BROKEN_CALL + 1 + sum(level > edge for edge in (-0.3, 0.5, 1.3)), SURE)
    if kind == "form":
        number = seed.random()
        bad = 0.03 if right else 0.2
        return Sign(CUT if number < bad else BROKEN_CALL if number < 1.3 * bad else PLAIN, FORM)
    return Sign(CUT, FORM)  # for the kind "alike"


def lived(kind, *, seed=0, requests=2_000, reports=False, hours=24.0):
    """Return P(correct) of the models after some requests, of which one in ten explores."""
    rng = random.Random(seed)
    online, signs = OnlineOutcomes(), Signs()
    priors = np.full(len(MODELS), 0.5)
    for number in range(requests):
        now = number * 3600.0 * hours / requests
        expected, _ = online.posterior(priors, MODELS, CELL, now)
        at = rng.randrange(3) if rng.random() < 0.1 else int(expected.argmax())
        right = rng.random() < RIGHT[MODELS[at]]
        if reports:
            online.observe(MODELS[at], CELL, right, now)
            continue
        correct, weight, offset = signs.weak(
            MODELS[at], shown(right, rng, kind), float(expected[at])
        )
        online.observe(
            MODELS[at],
            CELL,
            correct,
            now,
            weight,
            offset=offset,
            reporter=SIGNS,
        )
    return online.posterior(priors, MODELS, CELL, 3600.0 * hours)[0]


def chosen(kind, **given):
    picked = [MODELS[int(lived(kind, seed=seed, **given).argmax())] for seed in range(6)]
    return sum(RIGHT[each] for each in picked) / len(picked)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sure", "form"])
def test_signs_alone_yield_half_of_the_gain_from_reports(kind):
    mean = sum(RIGHT.values()) / 3
    assert chosen(kind) - mean >= 0.5 * (chosen(kind, reports=True) - mean)


def test_a_sign_that_all_models_show_equally_has_no_effect():
    found = lived("alike", requests=500)
    assert found == pytest.approx([0.5] * 3, abs=0.15)
    assert np.ptp(found) < 0.01


def test_reliable_signs_weigh_as_much_as_reports_and_useless_ones_nothing():
    signs = Signs()
    for number in range(4000):
        right = number % 2 == 0
        signs.learn("exact", Sign(PLAIN if right else CUT, FORM), correct=right)
        signs.learn("empty", Sign(CUT if number % 4 < 2 else PLAIN, FORM), correct=right)
    exact = [signs.weak("exact", Sign(number, FORM), 0.5) for number in (PLAIN, CUT)]
    assert [weak[0] for weak in exact] == [True, False]
    assert all(weak[1] > 0.9 for weak in exact)
    assert signs.weak("empty", Sign(CUT, FORM), 0.5)[1] < 0.02


def test_reports_can_reverse_the_meaning_of_a_sign():
    signs = Signs()
    assert not signs.weak("long", Sign(CUT, FORM), 0.5)[0]
    for _ in range(300):
        signs.learn("long", Sign(CUT, FORM), correct=True)
        signs.learn("long", Sign(PLAIN, FORM), correct=False)
    assert signs.weak("long", Sign(CUT, FORM), 0.5)[0]


def test_an_hour_of_bad_signs_moves_a_model_by_at_most_their_cap():
    online, signs = OnlineOutcomes(), Signs()
    before = np.array([0.8])
    for second in range(0, 3600, 5):
        correct, weight, offset = signs.weak("m", Sign(CUT, FORM), 0.8)
        signs.weak("other", Sign(PLAIN, FORM), 0.8)
        online.observe("m", CELL, correct, second, weight, offset=offset, reporter=SIGNS)
    ((after,), _) = online.posterior(before, ("m",), CELL, 3600.0)
    taken = online.cells["m", CELL._replace(bucket=4096)].total.outcomes
    assert taken <= CAP_PER_HOUR / 4 * 2 + 1
    assert after > 0.8 * KAPPA / (KAPPA + taken) - 0.2
    for second in range(3600, 3640):
        assert online.observe("m", CELL, True, float(second))  # reports have a cap of their own


def choice(*logprobs, **more):
    return {"logprobs": {"content": [{"logprob": each} for each in logprobs]}, **more}


def test_the_worst_sign_of_an_answer_counts():
    assert sign_of({}, None) == Sign(PLAIN, FORM)
    assert sign_of(choice(-0.1, finish_reason="length"), None) == Sign(CUT, SURE)
    unsure, sure = (sign_of(choice(each, each), None) for each in (-2.0, -0.01))
    assert (unsure.number, sure.number) == (BROKEN_CALL + 1, BROKEN_CALL + LEVELS)
    hostile = sign_of(choice(float("nan"), 1e308, -1e308), None)
    assert 0 <= hostile.number <= BROKEN_CALL + LEVELS
