"""Retries can avoid tried models under any policy, and stop once all have been tried."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from laar.accuracy.assessment import Assessment, PlainAssessor, SpeedPrior
from laar.accuracy.difficulty import given
from laar.core.cost import CostWeights
from laar.core.decision import Decision
from laar.core.director import Director
from laar.fleet.endpoints import Reading
from laar.fleet.membership import EndpointSpec
from laar.policies import POLICY_NAMES, build_policies
from laar.request import Api, Request
from support.directors import director_of

MODELS = ("a", "b", "c")
SECONDS = {"a": 1.0, "b": 2.0, "c": 4000.0}  # more than the retry penalty of 100
RIGHT = {"a": 0.5, "b": 0.6, "c": 0.9}


class Known(PlainAssessor):
    """Assesses models with fixed times, whose failures are correlated."""

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        static = np.array([RIGHT[model] for model in models])
        failed = np.array([model in tried for model in models])
        return replace(
            super().assess(request, models, tried, now),
            probability=given(static, failed, 1.5),
            published=static,
        )


def director(**settings: object) -> Director:
    specs = (EndpointSpec(address=f"10.0.0.{at}:80", models=(m,)) for at, m in enumerate(MODELS))
    policies = build_policies(CostWeights())
    made = director_of(*specs, seed=3, policies=policies, assessor=Known(), **settings)
    made.engines.reassess(lambda model: SpeedPrior(answer_s=SECONDS[model]))
    return made


def ask(d: Director, tried: str = "") -> Decision:
    request = Request(
        id="r", api=Api.CHAT, model="auto", question="q", chars=400, tried=tried, retries=True
    )
    return d.choose(request, 0.0)


class Sampled(PlainAssessor):
    """Knows what first answers and repeats are worth; nothing of the models in `unknown`.

    Those in `reported` are known by reported outcomes alone.
    """

    def __init__(self, rng: random.Random) -> None:
        self.right, self.share = rng.uniform(0.2, 1.0), {m: rng.uniform(0.1, 1.0) for m in MODELS}
        self.unknown = rng.choice([(), (), "a", "b", "ab"])
        self.reported = rng.choice([(), "b", "c", "bc"])

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        return replace(
            super().assess(request, models, tried, now),
            probability=np.full(len(models), self.right),
            evidence=np.array([99.0 * (m not in (*self.unknown, *self.reported)) for m in models]),
            reported=np.array([0.5 * (m in self.reported) for m in models]),
            repeats=None if request.reproducible else np.array(list(map(self.share.get, models))),
        )


@pytest.mark.parametrize("seed", range(60))
def test_a_repeat_is_chosen_where_its_answer_is_another_draw_and_worth_it(seed: int) -> None:
    rng = random.Random(seed)
    d = director()
    known = d.chooser.assessor = Sampled(rng)
    seconds = {model: rng.lognormvariate(3, 1) for model in MODELS}
    d.engines.reassess(lambda model: SpeedPrior(answer_s=seconds[model]))
    tried = rng.choices(MODELS, k=rng.randint(1, 5))
    request = replace(SENT, tried=",".join(tried), reproducible=rng.random() < 0.3)
    decision = d.choose(request, 0.0)
    assert decision.view is not None
    repeats = {
        m: tried.count(m)
        if request.reproducible or (m in known.unknown and m not in known.reported)
        else 0
        for m in MODELS
    }
    costs = {m: seconds[m] / known.share[m] ** (tried.count(m) - repeats[m]) for m in MODELS}
    least = min(repeats.values())
    best = min(costs[m] for m in MODELS if repeats[m] == least)
    assert repeats[decision.model] == least, "a wrong answer is repeated only if all would be"
    assert costs[decision.model] <= 1.1 * best
    assert decision.view.probability.item(decision.position) == pytest.approx(
        known.right * seconds[decision.model] / costs[decision.model]
    )


SENT = Request(id="r", api=Api.CHAT, model="auto", question="q", chars=400, retries=True)


def chain(d: Director) -> list[str]:
    """Return the models of the attempts, in order, until the client stops."""
    tried: list[str] = []
    while len(tried) < 10:
        decision = ask(d, ",".join(tried))
        tried.append(decision.model)
        if decision.exhausted:
            break
    return tried


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_with_new_model_every_policy_tries_each_model_once_and_stops(policy: str) -> None:
    assert sorted(chain(director(policy=policy, retries="new-model"))) == list(MODELS)


def test_with_new_model_a_policy_ranks_the_untried_by_its_own_scores() -> None:
    d = director(policy="least-loaded", retries="new-model")
    d.table.reserve(d.table.slot("10.0.0.1:80"), 1e6, 1e6)
    assert {ask(d, "a").model for _ in range(20)} == {"c"}


def test_laar_asks_each_model_once_in_order_of_cost_and_stops() -> None:
    assert chain(director()) == ["a", "b", "c"]


def test_a_failure_weighs_more_if_success_was_likely() -> None:
    right = np.array([0.9, 0.5, 0.5])
    after_strong = given(right, np.array([True, False, False]), 2.0)[2]
    after_weak = given(right, np.array([False, True, False]), 2.0)[2]
    assert after_strong < after_weak < 0.5
    assert given(right, np.array([True, False, False]), 0.0)[2] == pytest.approx(0.5)


def with_windows(**windows: int) -> Director:
    d = director()
    specs = [
        EndpointSpec(address=f"10.0.0.{at}:80", models=(m,), max_model_len=windows.get(m))
        for at, m in enumerate(MODELS)
    ]
    d.table.replace("t", specs)
    return d


def test_exhaustion_does_not_wait_for_a_model_with_too_short_a_window() -> None:
    """The prompt has 100 tokens; the only other retry would repeat a wrong answer."""
    assert chain(with_windows(c=50)) == ["a", "b"]
    assert chain(with_windows(b=50, c=50)) == ["a"]
    assert chain(with_windows(c=5000)) == ["a", "b", "c"]
    assert chain(with_windows(a=50, b=50, c=60)) == ["c"]  # fits none, so the largest is tried


def test_exhaustion_waits_for_a_busy_endpoint_with_a_sufficient_window() -> None:
    d = with_windows(c=50)
    large = EndpointSpec(address="10.0.0.9:80", models=("c",), max_model_len=5000)
    d.table.replace("more", [large])
    d.table.read(large.address, Reading(waiting=1000.0), 0.0)
    assert ask(d, "a").model == "b"
    assert not ask(d, "a").exhausted
    for _ in range(3):
        d.table.round_trip(large.address, None, 0.0)  # makes it unreachable
    d.table.read("10.0.0.0:80", Reading(), 0.0)
    assert ask(d, "a").exhausted
