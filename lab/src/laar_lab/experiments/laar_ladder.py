"""Where the gain comes from, step by step from a baseline to the oracle.

    a balancer as shipped -> + the retry rule and the stop -> + own time and queue -> + cache
    -> + P(correct) by class -> (+ by request) -> the oracle by cell -> the oracle by question

The questions of all cells are shuffled, like real traffic. Runs have 1 to 16 users, on engines
with and without prompt caching. From the second step on, all contestants retry and stop by the
same rule, so that none is rewarded for giving up.

Mean time to correct answer rewards giving up. The measure here is the restricted mean time: a
question's time to its correct answer, or T if there is none by then. T is twice the time that an
idle fleet needs to ask every model once, and is the same for every contestant. Times are given as
fractions of T.

The claims compare laar as a whole with a baseline. The contribution of P(correct) is the difference
between the step "and cache", which assumes every model correct, and "Q by class".
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.core.cost import CostWeights
from laar.core.decision import Retries
from laar.core.interfaces import Assessor
from laar.core.policy import Policy
from laar.policies import build_policies
from laar.policies.laar.outlook import Outlook
from laar_lab.claims import Evidence, Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.lookups import (
    AllRight,
    Blind,
    Oracle,
    TrueAccuracies,
    World,
    simulated,
    sites_of,
    uncached,
)
from laar_lab.kv_lookup import queries
from laar_lab.report import Report, Table, Value
from laar_lab.sim.answers import AccuracySurface
from laar_lab.sim.fleet import FleetSettings, Question, VirtualFleet, ask_until_correct
from laar_lab.sim.fleet.clients import MAX_ATTEMPTS
from laar_lab.statistics import gain
from laar_lab.sweep import grid
from laar_lab.workloads.kv_questions import as_questions

USERS = (1, 2, 4, 8, 16)
FEW = 4
"""Up to this many users, some endpoints are idle, so there is a choice."""
PER_CELL = 8
_TIMES = np.geomspace(0.02, 1.0, 25)
_FROM = 0.05  # of T; before that, curves only show who answers easy questions first

_SHIPPED = ("load-aware", "session-affinity", "least-loaded")
_RULE = tuple(f"{name}, retry rule" for name in _SHIPPED)
_OURS = ("own time and queue", "and cache", "laar: Q by class")
_ORACLES = ("oracle by cell", "oracle by question")

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run; times are fractions of T, infinite for questions without a correct answer."""

    times: _Floats

    @property
    def restricted(self) -> float:
        return float(np.minimum(self.times, 1.0).mean())

    def within(self, share: float) -> float:
        return float((self.times <= share).mean())


_Key = tuple[str, int, bool]
"""Contestant, number of users, whether engines cache prompts."""


def run(scope: Scope) -> Report:
    """Run every step for every number of users, with and without caching."""
    world = simulated()
    users = (2, 8) if scope.quick else USERS
    steps = (*_SHIPPED, *_RULE, *_OURS, *_ORACLES)
    cases = {
        (step, n, cached): (world, step, n, cached, scope.quick)
        for cached, n, step in product((False, True), users, steps)
    }
    results = grid(run_one, cases, scope.seeds, label="laar-ladder")
    return Report(
        tables=[_ladder(results, steps, users)],
        evidence=_evidence(results, users, _OURS[-1]),
    )


def run_one(
    world: World,
    contestant: str,
    users: int,
    cached: bool,
    quick: bool,
    seed: int,
) -> _Run:
    """Run a contestant with a number of users, with or without caching, on a seed."""
    asked = asked_of(world, seed, quick)
    if not cached:
        asked = [uncached(question) for question in asked]
    known = CapabilityModel(world.capability)
    assessor: Assessor = CapabilityAssessor(known)
    policies = build_policies(CostWeights())
    policy = "laar"
    retries: Retries = "new-model"
    if contestant in _SHIPPED:
        policy, retries = contestant, "as-scored"
    elif contestant in _RULE:
        policy = contestant.removesuffix(", retry rule")
    elif contestant in _OURS[:2]:
        assessor = AllRight(assessor)
        weights = CostWeights()
        scorer = Outlook(weights) if contestant == "and cache" else Blind(weights, "cached_tokens")
        policies["laar"] = Policy(name="laar", scorers=[(scorer, 1.0)], knows_retries=True)
    elif contestant == _OURS[2]:
        plain = world.capability.model_copy(update={"text": None})
        assessor = CapabilityAssessor(CapabilityModel(plain))
    elif contestant == _ORACLES[0]:
        assessor = TrueAccuracies(known, world.surface)
    elif contestant == _ORACLES[1]:
        assessor = Oracle(assessor, asked)
    fleet = VirtualFleet(
        sites_of(world.surface),
        FleetSettings(policy=policy, retries=retries),
        seed=seed,
        assessor=assessor,
        policies=policies,
    )
    answered = ask_until_correct(fleet, asked, concurrency=users, max_attempts=MAX_ATTEMPTS)
    limits = [limit_s(world.surface, record.question) for record in answered]
    times = [
        record.ttca_s / limit if record.correct else float("inf")
        for record, limit in zip(answered, limits, strict=True)
    ]
    return _Run(times=np.array(times))


def asked_of(world: World, seed: int, quick: bool) -> list[Question]:
    """Return the questions of a seed in random order, like mixed traffic."""
    drawn = queries(
        languages=world.surface.languages,
        lengths_tokens=world.surface.lengths_tokens,
        per_cell=PER_CELL // (4 if quick else 1),
        seed=seed,
    )
    random.Random(f"{seed}/shuffled").shuffle(drawn)
    return as_questions(drawn, world.surface, seed=seed)


def limit_s(surface: AccuracySurface, question: Question) -> float:
    """Return T: twice the time that an idle fleet takes to ask every model once."""
    prompt = question.prompt
    return 2.0 * sum(
        model.seconds_per_token * prompt.prompt_tokens
        + model.decode_s_per_token * prompt.output_tokens
        for model in surface.models.values()
    )


# -- results -----------------------------------------------------------------------------------

_Results = Mapping[_Key, Sequence[_Run]]


def _restricted(results: _Results, key: _Key) -> list[float]:
    return [one.restricted for one in results[key]]


def _best_rule(results: _Results, users: int, cached: bool) -> str:
    """Return the best baseline with the retry rule under these conditions: the one to beat."""
    return min(_RULE, key=lambda step: float(np.mean(_restricted(results, (step, users, cached)))))


def _against_best(results: _Results, users: int, cached: bool, ours: str) -> Seen:
    best = _best_rule(results, users, cached)
    return Seen(
        _restricted(results, (ours, users, cached)), _restricted(results, (best, users, cached))
    )


def _ladder(results: _Results, steps: Sequence[str], users: Sequence[int]) -> Table:
    """Return how much of the best baseline's restricted mean time each step saves."""
    columns = [(n, cached) for cached in (False, True) for n in users]
    rows: list[tuple[Value, ...]] = [
        ("best baseline", *(_best_rule(results, *column).split(",")[0] for column in columns))
    ]
    for step in steps:
        seen = [_against_best(results, *column, step) for column in columns]
        rows.append((step, *(gain(one.ours, one.theirs) for one in seen)))
    return Table(
        title="Time saved, as a share of the time of the best baseline with the retry rule",
        columns=(
            "step",
            *(f"{n} users, {'kept' if cached else 'not kept'}" for n, cached in columns),
        ),
        rows=rows,
        digits=3,
    )


def _evidence(results: _Results, users: Sequence[int], ours: str) -> Evidence:
    conditions = [(n, cached) for cached in (False, True) for n in users]
    against = {each: _against_best(results, *each, ours) for each in conditions}
    return {
        "few": {_where(each): seen for each, seen in against.items() if each[0] <= FEW},
        "many": {_where(each): seen for each, seen in against.items() if each[0] > FEW},
        "nowhere-worse": {_where(each): seen for each, seen in against.items()},
        "curve": {
            f"{step} at {share:.2f} T, {_where(each)}": Seen(
                [run.within(share) for run in results[ours, *each]],
                [run.within(share) for run in results[step, *each]],
            )
            for each in conditions
            for step in (*_SHIPPED, *_RULE)
            for share in _TIMES[_TIMES >= _FROM]
        },
    }


def _where(condition: tuple[int, bool]) -> str:
    users, cached = condition
    return f"{users} users, prompts {'kept' if cached else 'not kept'}"


EXPERIMENTS = declared(__name__, {"laar-ladder": run})
