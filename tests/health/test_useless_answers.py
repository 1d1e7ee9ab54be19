"""An endpoint gains no traffic by any form of useless answers, and no healthy one loses any."""

import math
import random
from dataclasses import replace
from itertools import count, cycle

import pytest
from bench.bench_useless import (
    ANSWER_S,
    CHANCE,
    CONCERNS,
    NAMED,
    SHAPES,
    WORKLOADS,
    Answer,
    Fleet,
    Question,
    draw,
    healthy,
    measure,
    said,
    sentence,
    useful,
)

pytestmark = pytest.mark.long

SHAPE = cycle(SHAPES)
RNG = random.Random(17)
DRAWN = [draw(RNG) for _ in range(10)]


def asked_of(name):
    """Return the requests of a workload, the same whichever tests ran before."""
    rng = random.Random(name)
    return iter(lambda: WORKLOADS[name](rng), None)


@pytest.mark.parametrize(
    ("form", "shape"),
    [pytest.param(form, next(SHAPE), id=form.name) for form in (*NAMED.values(), *DRAWN)],
)
def test_no_form_of_useless_answers_gets_more_than_chance(form, shape):
    result = measure(form, shape, seconds=12.5, seed=3)
    assert result.met, f"{result.share:.0%} of the requests after 10 s"


@pytest.mark.parametrize(
    ("name", "shape", "endpoints"),
    [(name, next(SHAPE), 2 + 3 * (number % 2)) for number, name in enumerate(WORKLOADS)],
)
def test_no_healthy_endpoint_is_excluded_whatever_its_clients_want(name, shape, endpoints):
    fleet = healthy(name, shape, endpoints=endpoints, seconds=10.0)
    assert fleet.out <= 0.08 * fleet.looks
    breakers = [known.breaker for known in fleet.picker.health.records.endpoints.values()]
    assert sum(breaker.openings for breaker in breakers) == 0


@pytest.mark.parametrize("name", ["one token", "fluent", "400 to clients"])
def test_a_useless_endpoint_is_found_beside_a_single_sibling_that_writes_labels_too(name):
    asked = asked_of("labels and chats")
    fleet = Fleet([NAMED[name].answer, useful], shape=SHAPES["gateway"], asked=asked)
    fleet.run(14.0)
    assert fleet.share(since=10.0) <= 0.2


@pytest.mark.parametrize("seed", range(3))
def test_a_quick_liar_of_two_gets_half_of_the_requests_and_an_honest_fast_one_most(seed):
    rng = random.Random(seed)
    faster, rate_per_s = rng.uniform(12.0, 60.0), rng.uniform(3.0, 10.0)

    def slow(question, rng):
        answer = useful(question, rng)
        return replace(answer, seconds=faster * answer.seconds)

    def lies(question, rng):
        return said(question, sentence(rng), seconds=ANSWER_S)

    shares = []
    for quick in (lies, useful):
        fleet = Fleet([quick, slow], shape=SHAPES["gateway"], seed=seed, rate_per_s=rate_per_s)
        fleet.run(24.0)
        shares.append(fleet.share(since=8.0))
        assert fleet.probes <= 8
    assert shares[0] <= 0.65
    assert shares[1] >= 0.8


@pytest.mark.parametrize("seed", range(4))
def test_nothing_fires_if_all_endpoints_give_the_same_dull_answers(seed):
    rng = random.Random(seed)
    text = rng.choice((sentence(rng), sentence(rng, 1, 1), "!" * 60))
    are_labels, system = seed % 2, "a prompt that all requests share " * 300

    def answers(question, _rng):
        label = random.Random(question.text).choice("AB") if are_labels else text
        return said(question, label, seconds=ANSWER_S)

    asked = (
        Question(text=f"{rng.random()} {sentence(rng)}", max_tokens=1, system=system)
        for _ in count()
    )
    fleet = Fleet([answers] * rng.randint(2, 5), asked=asked, rate_per_s=3.0, seed=seed)
    fleet.run(10.0)
    assert fleet.out == 0
    known = fleet.picker.health.records.endpoints.values()
    assert {endpoint.heard_at for endpoint in known} == {-math.inf}  # none was ever paused


def test_an_endpoint_that_refuses_one_kind_of_request_serves_all_others():
    form = NAMED["refuses tools"]
    fleet = Fleet([form.answer, *[useful] * 4], shape=SHAPES["native"])
    fleet.run(20.0)
    has_tools = CONCERNS[form.name]
    assert fleet.share(since=10.0, concerns=has_tools) <= 0.5 * CHANCE
    assert fleet.share(since=10.0, concerns=lambda question: not has_tools(question)) >= CHANCE


@pytest.mark.parametrize("name", ["fluent", "error finish", "400 to clients"])
def test_an_endpoint_whose_answers_are_useful_again_regains_its_share(name):
    def heals(question, rng):
        return (NAMED[name].answer if fleet.now < 8.0 else useful)(question, rng)

    fleet = Fleet([heals, *[useful] * 4], shape=SHAPES["gateway"])
    fleet.run(40.0)
    assert fleet.share(since=4.0, until=8.0) < 0.25 * CHANCE
    assert fleet.share(since=25.0) >= 0.7 * CHANCE


def test_equal_vectors_for_different_texts_are_useless():
    def answer(_question, _rng):
        body = b'{"model": "m", "data": [{"index": 0, "embedding": [0.1, 0.7, -0.2, 0.5, 0.3]}]}'
        return Answer(parts=(body,))

    asked = asked_of("embeddings")
    fleet = Fleet([answer, *[useful] * 4], shape=SHAPES["native"], asked=asked)
    fleet.run(14.0)
    assert fleet.share(since=10.0) <= 0.05
