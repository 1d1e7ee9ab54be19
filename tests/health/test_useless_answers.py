"""An endpoint gains no traffic by any form of useless answers, and no healthy one loses any."""

import math
import random
from dataclasses import replace
from itertools import count, cycle

import pytest
from bench.bench_useless import (
    ANSWER_S,
    CHANCE,
    ENDPOINTS,
    REFUSED,
    SHAPES,
    USUAL,
    WORKLOADS,
    WORST,
    Answer,
    Fleet,
    Question,
    constant,
    draw,
    healthy,
    honest,
    measure,
    pieces,
    refuses,
    said,
    sentence,
    useful,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from laar.health.explained import SeenAnswers, Shown, as_good

pytestmark = pytest.mark.long

SHAPE = cycle(SHAPES)


def asked_of(name):
    """Return the requests of a workload, the same whichever tests ran before."""
    rng = random.Random(name)
    return iter(lambda: WORKLOADS[name](rng), None)


def form_of(says, **fixed):
    """Return the behavior of an endpoint that says something useless at once."""
    form = draw(random.Random(1), **{**USUAL, "says": says, **fixed})
    return form.behavior(lambda: math.inf)


FORMS = {
    "a fluent text": form_of(constant),
    "one token": form_of(pieces),
    "400 to clients": refuses(lambda _question: True),
    "errors": lambda question, _rng: said(question, "", finish="error"),
}


@settings(max_examples=12)
@given(seed=st.integers(0, 10**9), shape=st.sampled_from([*SHAPES]))
def test_no_form_of_useless_answers_gets_more_than_the_bound(seed, shape):
    form = draw(random.Random(seed))
    assume(not form.like)
    assert measure(form, shape, seed=seed, seconds=13.0) <= WORST, form


@pytest.mark.parametrize(("short", "least", "most"), [(1.0, 0.9, 1.0), (0.5, 0.0, 0.3)])
def test_a_few_long_answers_make_nobody_believed_and_many_do(short, least, most):
    def is_believed(rng):
        seen, scatter = [SeenAnswers() for _ in range(ENDPOINTS)], rng.uniform(0.3, 1.0)
        for _ in range(48):
            for factor, answers in zip((short, 1.0, 1.0, 1.0, 1.0), seen, strict=True):
                kind, new = rng.choice("ab"), rng.getrandbits(60)
                size = factor * rng.lognormvariate(5.0, scatter)
                answers.add(Shown(kind, size, "content", new), new)
            yield as_good(seen[0], seen[1:])

    assert least <= sum(any(is_believed(random.Random(at))) for at in range(60)) / 60 <= most


@pytest.mark.parametrize("name", FORMS)
def test_what_says_nothing_or_always_the_same_gets_nothing(name):
    fleet = Fleet([useful] * ENDPOINTS, shape=SHAPES[next(SHAPE)])
    fleet.behave[3] = FORMS[name]
    fleet.run(13.0)
    assert fleet.share(3, since=10.0) <= 0.02


@settings(max_examples=2)
@given(times=st.floats(2.0, 20.0), seed=st.integers(0, 10**9))
def test_an_honest_fast_endpoint_gets_what_the_operator_could_confirm(times, seed):
    best = honest(times, "gateway", confirmed=True, seed=seed)
    assert honest(times, "gateway", confirmed=False, seed=seed) >= 0.9 * best


@pytest.mark.parametrize(
    ("name", "shape", "endpoints"),
    [(name, next(SHAPE), 2 + 3 * (number % 2)) for number, name in enumerate(WORKLOADS)],
)
def test_no_healthy_endpoint_is_excluded_whatever_its_clients_want(name, shape, endpoints):
    fleet = healthy(name, shape, endpoints=endpoints, seconds=10.0)
    assert fleet.out <= 0.08 * fleet.looks
    breakers = [known.breaker for known in fleet.picker.health.records.endpoints.values()]
    assert sum(breaker.openings for breaker in breakers) == 0
    if endpoints == ENDPOINTS:  # and none gets less than the others
        assert all(0.8 * CHANCE <= fleet.share(at) <= 1.2 * CHANCE for at in range(endpoints))


@pytest.mark.parametrize("name", ["one token", "a fluent text", "400 to clients"])
def test_a_useless_endpoint_is_found_beside_a_single_sibling_that_writes_labels_too(name):
    asked = asked_of("labels and chats")
    fleet = Fleet([FORMS[name], useful], shape=SHAPES["gateway"], asked=asked)
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
        assert fleet.probes <= 10
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
    has_tools = REFUSED["tools"]
    fleet = Fleet([refuses(has_tools), *[useful] * 4], shape=SHAPES["native"])
    fleet.run(20.0)
    assert fleet.share(since=10.0, concerns=has_tools) <= 0.5 * CHANCE
    assert fleet.share(since=10.0, concerns=lambda question: not has_tools(question)) >= CHANCE


@pytest.mark.parametrize("name", ["a fluent text", "errors", "400 to clients"])
def test_an_endpoint_whose_answers_are_useful_again_regains_its_share(name):
    def heals(question, rng):
        return (FORMS[name] if fleet.now < 8.0 else useful)(question, rng)

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
