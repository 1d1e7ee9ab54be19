"""RouteBalance's scenario: thirteen engines with models of several sizes, one answer per question.

The paper compares a router that chooses the model, followed by a balancer that chooses the engine,
with a joint choice of both. Its models, prompts and judge are not available here. The engines have
the lab's models, assigned in turn with the fastest first, and the questions are KV look-ups with
right or wrong answers. Routers use laar's P(correct), and a model's price is its time on an idle
engine, in seconds. Contestants therefore differ only in which part knows the load, and when.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice, product

import numpy as np

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.core.cost import CostWeights
from laar.core.endpoints import Floats
from laar.core.interfaces import Assessor, View
from laar.core.policy import Policy
from laar.policies import build_policies
from laar.policies.laar.outlook import Outlook
from laar_lab.claims import Evidence, Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.lookups import AllRight, World, sites_of, uncached, world_of
from laar_lab.kv_lookup import queries
from laar_lab.report import Report, Table, means_table
from laar_lab.sim.fleet import Exchange, FleetSettings, Question, Site, VirtualFleet
from laar_lab.sweep import grid
from laar_lab.workloads.kv_questions import as_questions

ENGINES = 13
LOADS = (0.3, 0.6, 0.9)
"""Request rates, as shares of the rate that all engines together can prefill."""

_LENGTHS = (4096, 8192, 16384)
_PER_CELL = 30
_NEAR = 0.1  # P(correct) that the router by price gives up for a cheaper model

OURS = "laar"
_SUMS = {
    "sum, quality": (0.8, 0.1, 0.1),
    "sum, balanced": (1 / 3, 1 / 3, 1 / 3),
    "sum, price": (0.1, 0.1, 0.8),
}
"""Weights of quality, time and price in RouteBalance's sum."""
_BY_QUALITY, _BY_PRICE, _BY_TIME = ("router by quality", "router by price", "router by idle time")
_ROUTERS = (_BY_QUALITY, _BY_PRICE, _BY_TIME)
CONTESTANTS = (OURS, "laar, all right", *_SUMS, *_ROUTERS, "balancer alone")


_FIGURES = {
    "right": "right",
    "e2e_s": "mean E2E, s",
    "per_right_s": "s per right answer",
    "price_s": "price, s on an idle engine",
}
"""Means of a run. Time divided by the share of correct answers is the time that a client needs if
it retries until the answer is correct."""


class WeightedSum:
    """Scores by a weighted sum of P(correct), and of time and price relative to the worst."""

    def __init__(self, quality: float, time: float, price: float) -> None:
        self._quality, self._time, self._price = quality, time, price
        self._outlook = Outlook(CostWeights())

    def score(self, view: View) -> Floats:
        """Score with the times that laar's cost predicts."""
        self._outlook.score(view)
        assert view.terms is not None
        time_s = view.terms.latency_s
        price_s = view.seconds_per_token * view.tokens + view.base_s
        score: Floats = (
            self._quality * view.probability
            + self._time * (1 - time_s / time_s.max())
            + self._price * (1 - price_s / price_s.max())
        )
        return score


def run(scope: Scope) -> Report:
    """Run every contestant at every load."""
    world = world_of(scope)
    cases = {
        (contestant, load): (world, contestant, load, scope.quick)
        for contestant, load in product(CONTESTANTS, LOADS)
    }
    results = grid(run_one, cases, scope.seeds, label="route-balance")
    return Report(tables=[_table(results, load) for load in LOADS], evidence=_evidence(results))


def run_one(world: World, contestant: str, load: float, quick: bool, seed: int) -> dict[str, float]:
    """Run a contestant at a load on a seed; return `_FIGURES`."""
    known = CapabilityModel(world.capability)
    assessor: Assessor = CapabilityAssessor(known)
    asked = _asked(world, seed, quick)
    rate = load * _capacity(world, asked)
    policies = build_policies(CostWeights())
    policy = OURS
    if contestant in _SUMS:
        sum_ = WeightedSum(*_SUMS[contestant])
        policies[OURS] = Policy(name=OURS, scorers=[(sum_, 1.0)], knows_retries=True)
    elif contestant == "laar, all right":
        assessor = AllRight(assessor)
    elif contestant != OURS:
        policy = "least-loaded"
        if contestant in _ROUTERS:
            asked = [_routed(world, CapabilityAssessor(known), contestant, each) for each in asked]
    fleet = VirtualFleet(
        _sites(world),
        FleetSettings(policy=policy),
        seed=seed,
        assessor=assessor,
        policies=policies,
    )
    ended: list[tuple[Exchange, Question]] = []
    at_s, rng = 0.0, random.Random(f"{seed}/arrivals")
    for question in asked:
        at_s += rng.expovariate(rate)
        fleet.clock.at(at_s, _send, fleet, question, ended)
    fleet.clock.run()
    right = float(np.mean([q.is_correct(each.decision.model) for each, q in ended]))
    e2e_s = float(np.mean([each.latency_s for each, _ in ended]))
    return {
        "right": right,
        "e2e_s": e2e_s,
        "per_right_s": e2e_s / max(right, 1e-9),
        "price_s": float(np.mean([_alone_s(world, each.decision.model, q) for each, q in ended])),
    }


def _send(fleet: VirtualFleet, question: Question, ended: list[tuple[Exchange, Question]]) -> None:
    fleet.send(
        question.request,
        question.prompt,
        lambda exchange: ended.append((exchange, question)),
        normal=question.normals[0],
    )


def _asked(world: World, seed: int, quick: bool) -> list[Question]:
    drawn = queries(
        languages=world.surface.languages,
        lengths_tokens=_LENGTHS,
        per_cell=_PER_CELL // (6 if quick else 1),
        seed=seed,
    )
    random.Random(f"{seed}/shuffled").shuffle(drawn)
    return [uncached(each) for each in as_questions(drawn, world.surface, seed=seed)]


def _sites(world: World) -> list[Site]:
    """Return the engines; models are assigned to them in turn, fastest model first."""
    models = sorted(sites_of(world.surface), key=lambda site: _pace(world, site.model))
    dealt = islice(cycle(models), ENGINES)
    return [replace(site, name=f"{number}-{site.name}") for number, site in enumerate(dealt)]


def _pace(world: World, model: str) -> float:
    return world.surface.models[model].seconds_per_token


def _capacity(world: World, asked: Sequence[Question]) -> float:
    """Return the requests per second that all engines together can prefill."""
    tokens = np.mean([question.prompt.prompt_tokens for question in asked])
    return float(sum(1 / (_pace(world, site.model) * tokens) for site in _sites(world)))


def _alone_s(world: World, model: str, question: Question) -> float:
    """Return the seconds that an idle engine with this model needs for the question."""
    prompt, speed = question.prompt, world.surface.models[model]
    read_s = speed.seconds_per_token * prompt.prompt_tokens
    return read_s + speed.decode_s_per_token * prompt.output_tokens


def _routed(world: World, assessor: Assessor, rule: str, question: Question) -> Question:
    """Return the question with the model that a router chooses without knowing the load."""
    models = list(world.surface.models)
    right = assessor.assess(question.request, models, (), 0.0).probability
    alone_s = np.array([_alone_s(world, model, question) for model in models])
    if rule == _BY_PRICE:
        alone_s = np.where(right >= right.max() - _NEAR, alone_s, np.inf)
    best = right.argmax() if rule == _BY_QUALITY else alone_s.argmin()
    if rule == _BY_TIME:
        best = (alone_s / right).argmin()
    return replace(question, request=replace(question.request, model=models[int(best)]))


_Results = Mapping[tuple[str, float], Sequence[Mapping[str, float]]]


def _table(results: _Results, load: float) -> Table:
    title = f"{ENGINES} engines at {load:g} of their prefill capacity"
    runs = {name: results[name, load] for name in CONTESTANTS}
    return means_table(title, "", runs, _FIGURES, digits=3)


def _evidence(results: _Results) -> Evidence:
    def seen(figure: str, other: str, load: float) -> Seen:
        return paired(results[OURS, load], results[other, load], figure)

    def best(load: float) -> str:
        others = (name for name in CONTESTANTS if name != OURS)
        return min(
            others, key=lambda o: float(np.mean([r["per_right_s"] for r in results[o, load]]))
        )

    return {
        "sooner": {_BY_PRICE: seen("e2e_s", _BY_PRICE, LOADS[-1])},
        "quality": {f"at {load:g}": seen("right", "balancer alone", load) for load in LOADS},
        "both": {
            f"at {load:g}, {best(load)}": seen("per_right_s", best(load), load) for load in LOADS
        },
        "time-at-the-choice": {_BY_TIME: seen("per_right_s", _BY_TIME, LOADS[-1])},
    }


EXPERIMENTS = declared(__name__, {"route-balance": run})
