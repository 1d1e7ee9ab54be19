"""Objectives for the time between tokens: who is asked, who is counted, and what is shown."""

import random

import numpy as np
import pytest

from laar.core.decision import Completion
from laar.explain.decision_record import DecisionRecord
from laar.explain.record import shown
from laar.fleet.membership import EndpointSpec
from laar.policies.laar.pricing import inputs_of
from laar.protocol.headers import read_head
from laar.request import Api, Request
from support.directors import director_of

A, B = "a:1", "b:1"
LIMIT_S = 0.012


def request(tpot_s=None, **given):
    given = {"chars": 400, "spans": ("x" * 400,), "model": "m"} | given
    return Request(id="r", api=Api.CHAT, tpot_objective_s=tpot_s, **given)


def fleet(**given):
    """Return a fleet that knows its answers: 100 tokens in a second, and 20 ms for each other."""
    d = director_of(A, B, **given)
    for number in range(40):
        now, beside = 100.0 * number, number % 8
        flights = [d.decide(request(), now) for _ in range(beside + 1)]
        for flight in flights:
            d.answering(flight, now + 0.1)
        n = {a: sum(f.address == a for f in flights) - 1 for a in (A, B)}
        for flight in sorted(flights, key=lambda f: n[f.address]):
            end(d, flight, 1.1 + 0.02 * n[flight.address])
    return d


def end(d, decision, latency_s=1.0, cause="complete", status=200):
    done = Completion(
        status=status, cause=cause, latency_s=latency_s, ttft_s=0.1, completion_tokens=100
    )
    d.settle(decision, done)


def late_of(d, decision):
    return inputs_of(decision.view, d.engines, d.policies["laar"].scorers[0][0].weights).later


@pytest.mark.parametrize("tpot_s", [LIMIT_S, None])
def test_without_objectives_nothing_is_computed(tpot_s):
    d = fleet()
    first = d.decide(request(tpot_s), 5000.0)
    assert (late_of(d, d.decide(request(), 5000.0)) is None) is (tpot_s is None)
    end(d, first)
    assert late_of(d, d.decide(request(), 5001.0)) is None


@pytest.mark.parametrize("seed", range(60))
def test_however_requests_end_and_endpoints_come_and_go_those_in_flight_are_counted(seed):
    drawn, names = random.Random(seed), [A, B, "c:1", "d:1"]
    d, flights, now = director_of(A, B), [], 0.0
    counts = d.engines.traffic
    for _ in range(60):
        now += drawn.random()
        way = drawn.choice(["decide", "decide", "end", "move", "replace"])
        if way == "replace":
            some = drawn.sample(names, drawn.randint(0, 4))
            d.table.replace("t", [EndpointSpec(address=a, models=("m",)) for a in some])
        elif way == "decide" and len(d.table):
            flights.append(d.decide(request(drawn.choice([None, LIMIT_S, 3600.0])), now))
        elif way == "end" and flights:
            decision = flights.pop(drawn.randrange(len(flights)))
            how = drawn.choice(["complete", "disconnect"]), drawn.choice([200, 503, None])
            for _ in range(drawn.randint(1, 2)):
                end(d, decision, now - decision.now, *how)
        elif way == "move" and flights:
            d.served_by(drawn.choice(flights), drawn.choice(names), now)
        own = [f.flight.slot for f in flights if f.request.tpot_objective_s is not None]
        assert counts.hurried.tolist() == np.bincount(own, minlength=len(counts.hurried)).tolist()
        assert counts.any_hurried == len(own)
        assert min(counts.came.min(), counts.load.min(), counts.mean.min()) > -1e-9


def placed(tpot_s, others_tpot_s):
    """Return what each endpoint costs a long prompt; the requests in flight at A are others'."""
    d = fleet()
    d.table.replace("t", [EndpointSpec(address=A, models=("m",))])
    for _ in range(4):
        d.answering(d.decide(request(others_tpot_s), 5000.0), 5000.1)
    d.table.replace("t", [EndpointSpec(address=a, models=("m",)) for a in (A, B)])
    decision = d.decide(request(tpot_s, chars=40_000, spans=("y" * 40_000,)), 5000.5)
    terms = decision.view.terms
    return dict(zip(decision.view.slots.tolist(), terms.cost_s, strict=True)), terms


def test_a_prompt_costs_more_beside_answers_that_it_makes_late_and_for_itself():
    plain, _ = placed(None, None)
    beside, _ = placed(None, LIMIT_S)
    itself, terms = placed(LIMIT_S, None)
    a, b = plain
    assert beside[a] > plain[a] + 1.0
    assert beside[b] == plain[b]
    assert itself[a] - plain[a] > itself[b] - plain[b] >= 0.0
    assert terms.tpot_s[a] > terms.tpot_s[b] > 0.009


@pytest.mark.parametrize("seed", range(12))
def test_any_header_leaves_costs_finite_and_a_lenient_one_as_they_are(seed):
    drawn = random.Random(seed)
    text = f"{drawn.choice('-+')}{drawn.random()}e{drawn.randint(-330, 330)}"
    text = drawn.choice([text, text, "nan", "inf", f"1e-{drawn.randint(300, 330)}"])
    tpot_s = read_head({"x-slo-tpot-ms": text}).tpot_objective_s
    (plain, _), (costs, _) = placed(None, None), placed(tpot_s, tpot_s)
    assert np.isfinite([*costs.values()]).all(), text
    if tpot_s is None or tpot_s > 1.0:
        assert costs == pytest.approx(plain, rel=0.1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 0.03),
        ({"objective": "chat"}, 0.02),
        ({"objective": "unknown"}, 0.03),
        ({"objective": "chat", "tpot_s": LIMIT_S}, LIMIT_S),
        ({"model": "auto"}, None),
    ],
)
def test_a_header_precedes_the_objectives_name_and_that_the_models(given, expected):
    d = director_of(A, B, tpot_objectives_s={"chat": 0.02, "m": 0.03})
    assert d.decide(request(**given), 0.0).view.tpot_objective_s == expected


@pytest.mark.parametrize("tpot_s", [LIMIT_S, None])
def test_an_explanation_shows_the_time_between_tokens_beside_an_objective(tpot_s):
    d = fleet()
    decision = d.decide(request(tpot_s), 5000.0)
    record = DecisionRecord(decision=decision, time_s=0.0, specs=d.table.by_slot, readings=None)
    assert all(("tpot_s" in row) is (tpot_s is not None) for row in shown(record)["candidates"])
