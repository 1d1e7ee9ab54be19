"""A second model is asked beside the first where it adds more than it costs others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from laar.accuracy.assessment import Assessment, PlainAssessor, SpeedPrior
from laar.accuracy.difficulty import given
from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.errors import RequestError
from laar.explain.decision_record import DecisionRecord
from laar.explain.record import shown
from laar.fleet.membership import EndpointSpec
from laar.plugins.companions import COMPANION, Companions
from laar.request import Api, Request
from support.directors import director_of

MODELS = ("a", "b", "c", "d")


class Alike(PlainAssessor):
    """Assesses models whose failures are correlated, each with some known outcomes."""

    def __init__(self, right: Sequence[float], evidence: float = 50.0) -> None:
        super().__init__()
        self.right, self.evidence = dict(zip(MODELS, right, strict=False)), evidence

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        row = np.array([self.right[model] for model in models])
        failed = np.array([model in tried for model in models])
        return replace(
            super().assess(request, models, tried, now),
            probability=given(row, failed, 1.0),
            evidence=np.full(len(models), self.evidence),
        )


def fleet(right: Sequence[float], seconds: Sequence[float], **given_: object) -> Director:
    specs = [EndpointSpec(address=f"{m}:80", models=(m,)) for m in MODELS[: len(right)]]
    assessor = given_.pop("assessor", None) or Alike(right)
    made = director_of(*specs, assessor=assessor, **given_)
    of = dict(zip(MODELS, seconds, strict=False))
    made.engines.reassess(lambda model: SpeedPrior(answer_s=of[model]))
    return made


def request(name: str = "1", **fields: object) -> Request:
    said = {"model": "auto", "retries": True, **fields}
    return Request(id=name, api=Api.CHAT, question="q", chars=400, **said)


def refusal(d: Director, asked: Request, now: float = 0.0) -> str:
    with pytest.raises(RequestError) as caught:
        d.decide(asked, now)
    assert caught.value.status == 409
    return caught.value.reason


def end(d: Director, decision: Decision, cause: str = "disconnect") -> None:
    d.settle(decision, Completion(status=None, cause=cause, latency_s=0.1))


def test_the_companion_leads_to_a_correct_answer_soonest_of_all() -> None:
    """The oracle draws the verdicts, and asks one model after another as laar's `next` does."""
    rng = random.Random(7)
    gains = []
    for _ in range(60):
        right = [rng.uniform(0.2, 0.95) for _ in MODELS]
        seconds = [10.0 ** rng.uniform(0.0, 1.0) for _ in MODELS]
        d = fleet(right, seconds)
        first = d.decide(request(), 0.0)
        one = MODELS.index(first.model)
        failed = np.array([at == one for at in range(4)])
        after = given(np.array(right), failed, 1.0)
        others = [at for at in range(4) if at != one]
        next_s = min(seconds[at] / after[at] for at in others)
        q, t = right[one], seconds[one]
        expected = {}
        for at in others:
            u, g = seconds[at], after[at]
            both_wrong = (1 - q) * (1 - g)
            only_first, only_second = q - (q - (1 - both_wrong - (1 - q) * g)), (1 - q) * g
            assert only_first == pytest.approx(q)
            if u >= t:
                mean = q * t + only_second * u + both_wrong * (u + next_s)
            else:
                mean = right[at] * u + (1 - right[at]) * t + both_wrong * next_s
            expected[MODELS[at]] = mean
        alone = t + (1 - q) * next_s
        try:
            second = d.decide(request("2", companion_of="1"), 0.0)
        except RequestError:
            assert min(expected.values()) > 0.9 * alone
            continue
        best = min(expected.values())
        assert expected[second.model] <= 1.02 * best + 0.05
        assert second.reason == COMPANION
        assert second.tried[-2:] == (first.model, second.model)
        gains.append(best / alone)
    assert len(gains) > 40
    assert np.mean(gains) < 0.9


def test_a_model_that_fails_with_the_first_is_not_its_companion() -> None:
    class Twins(Alike):
        def assess(self, request, models, tried, now):
            known = super().assess(request, models, tried, now)
            if "a" in tried:
                known.probability[:] = [0.01, 0.02, 0.5]
            return known

    d = fleet([0.6, 0.6, 0.5], [1.0, 1.01, 2.0], assessor=Twins([0.6, 0.6, 0.5]))
    assert d.decide(request(subset=frozenset(["a:80"])), 0.0).model == "a"
    assert d.decide(request("2", companion_of="1"), 0.0).model == "c"


def test_the_first_is_the_model_that_answers_after_a_retry() -> None:
    d = fleet([0.9, 0.3, 0.5], [1.0, 1.0, 1.0])
    first = d.decide(request(), 0.0)
    assert first.model == "a"
    d.served_by(first, "b:80", 0.1)
    second = d.decide(request("2", companion_of="1"), 0.2)
    assert (Companions.of(second.view).model, Companions.of(second.view).right) == (
        "b",
        pytest.approx(0.3, abs=0.02),
    )


def test_nothing_is_asked_beside_a_request_that_is_not_there() -> None:
    d = fleet([0.5, 0.5], [1.0, 1.0])
    assert refusal(d, request("2", companion_of="1")) == "no-companion"
    end(d, d.decide(request(tenant="x", shadow=True), 0.0))
    assert refusal(d, request("2", companion_of="1", tenant="x")) == "no-companion"
    first = d.decide(request(tenant="x"), 0.0)
    assert refusal(d, request("2", companion_of="1", tenant="y")) == "no-companion"
    assert refusal(d, request("2", companion_of="1", tenant="x", shadow=True)) == "no-companion"
    unread = Request(id="2", api=Api.OPAQUE, model="a", companion_of="1", tenant="x")
    assert refusal(d, unread) == "not-worth-it"
    second = d.decide(request("2", companion_of="1", tenant="x"), 0.0)
    assert d.table.in_flight.sum() == 2
    end(d, first)
    assert refusal(d, request("3", companion_of="1", tenant="x")) == "no-companion"
    assert d.decide(request("3", companion_of="2", tenant="x"), 0.0).model == first.model
    end(d, second)
    twice = [d.decide(request("2", tenant="x"), 0.0) for _ in range(2)]
    end(d, twice[0])  # the later one with its id is still in flight
    assert (
        d.plugins.get(Companions).first_of(request("4", companion_of="2", tenant="x")) is twice[1]
    )
    end(d, twice[1])
    assert not d.plugins.get(Companions)._firsts.keys() - {("x", "3")}


@pytest.mark.parametrize(
    ("case", "right", "seconds", "given_"),
    [
        ("one endpoint", [0.5], [1.0], {}),
        ("never wrong", [1.0, 1.0], [1.0, 1.5], {}),
        ("adds nothing", [0.9, 0.01], [1.0, 50.0], {"busy": 2}),
        ("unknown P", [0.5, 0.5], [1.0, 1.0], {"assessor": Alike([0.5, 0.5], 0.0)}),
        ("another policy", [0.5, 0.5], [1.0, 1.0], {"policy": "least-loaded"}),
        ("busy fleet", [0.7, 0.7], [1.0, 1.0], {"busy": 40}),
    ],
)
def test_a_companion_that_is_not_worth_it_is_refused_at_once(case, right, seconds, given_) -> None:
    busy = given_.pop("busy", 0)
    d = fleet(right, seconds, **given_)
    if busy:
        d.engines.reassess(lambda _model: SpeedPrior(seconds_per_token=5e-3, answer_s=1.0))
        for number in range(busy * len(right)):
            d.decide(request(f"r{number}", model=MODELS[number % len(right)]), 0.0)
    d.decide(request(), 0.0)
    before = d.table.in_flight.sum()
    assert refusal(d, request("2", companion_of="1")) in ("not-worth-it", "no-companion")
    assert d.table.in_flight.sum() == before


def test_the_record_says_what_the_companion_is_expected_to_gain() -> None:
    d = fleet([0.5, 0.5], [1.0, 1.0])
    d.decide(request(), 0.0)
    second = d.decide(request("2", companion_of="1"), 0.0)
    record = DecisionRecord(decision=second, time_s=0.0, specs=d.table.by_slot, readings=None)
    told = shown(record, explained=True)
    assert told["companion_of"] == "1"
    assert (
        "was asked beside a: the first correct answer of the two is expected after"
        in (told["sentence"])
    )
