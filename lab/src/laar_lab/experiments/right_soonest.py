"""The time to a correct answer on real questions, with P(correct) and by rules without it.

The nine models' answers are real, their speeds follow from their sizes, and the artifact is fitted
to other questions (`real_questions`); for *unseen* tasks, to questions of other tasks. Users ask
until an answer is correct, each model at most once, which every rule here knows.

A question that some model solves takes the time until then; if a rule gives up before, twice the
time of asking every model on an idle fleet. The restricted mean counts all questions, none longer
than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.core.cost import CostWeights
from laar.core.interfaces import Assessor, View
from laar.core.policy import Policy
from laar.fleet.endpoints import Floats
from laar.policies import build_policies
from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.first_answers import RECORDS
from laar_lab.experiments.lookups import AllRight, ByModel, limit_s, sites_of
from laar_lab.experiments.real_questions import records_world
from laar_lab.report import Report, Table, Value
from laar_lab.sim.fleet import FleetSettings, VirtualFleet, ask_until_correct
from laar_lab.statistics import estimate
from laar_lab.sweep import grid

OURS = "laar"
TWO = "laar, two at once"
RIVALS = ("P by model", "time only", "least-loaded", "best model first")
USERS = 8
_QUESTIONS = 100

_Case = tuple[str, int, bool]
"""Rule, users, whether tasks are unseen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Mean seconds over the questions that some model solves, and over all; the share solved."""

    solved_s: float
    restricted_s: float
    solved: float


class _BestFirst:
    """Scores by P(correct) alone."""

    def score(self, view: View) -> Floats:
        return 1.0 - view.probability


def run(scope: Scope) -> Report:
    """Ask with each rule, for each number of users, on known and unseen tasks."""
    path = (scope.data or Path()) / RECORDS
    asked = [(n, False) for n in ((USERS,) if scope.quick else (1, USERS, 32))] + [(USERS, True)]
    cases = [(rule, *of) for of, rule in product(asked, (OURS, TWO, *RIVALS))]
    found = grid(run_one, {case: (path, *case) for case in cases}, scope.seeds, label="right")
    evidence = {
        rival.lower().replace(" ", "-"): {
            f"{users} users": Seen(
                [one.solved_s for one in found[OURS, users, False]],
                [one.solved_s for one in found[rival, users, False]],
            )
            for users, unseen in asked
            if not unseen
        }
        for rival in RIVALS[:2]
    }
    return Report(tables=[_table(found, cases)], evidence=evidence)


def run_one(path: Path, rule: str, users: int, unseen: bool, seed: int) -> _Run:
    """Ask until correct by a rule."""
    world = records_world(path, unseen=seed % 2 if unseen else None)
    known = CapabilityModel(world.capability)
    assessor: Assessor = CapabilityAssessor(known)
    policies = build_policies(CostWeights())
    policy = rule if rule in policies else "laar"
    if rule in {"P by model", "best model first"}:
        assessor = ByModel(known)
    if rule == "best model first":
        policy = "best"
        policies[policy] = Policy(name=policy, scorers=[(_BestFirst(), 1.0)])
    elif rule == "time only":
        assessor = AllRight(assessor)
    fleet = VirtualFleet(
        sites_of(world.surface),
        FleetSettings(policy=policy, retries="new-model"),
        seed=seed,
        assessor=assessor,
        policies=policies,
    )
    asked = world.questions(seed, _QUESTIONS)
    answered = ask_until_correct(fleet, asked, concurrency=users, at_once=1 + (rule == TWO))
    models = list(world.surface.models)
    limits = [limit_s(world.surface, one.question) for one in answered]
    times = [
        one.ttca_s if one.correct else max(one.ttca_s, limit)
        for one, limit in zip(answered, limits, strict=True)
    ]
    solvable = [any(map(one.question.is_correct, models)) for one in answered]
    return _Run(
        solved_s=float(np.mean(np.array(times)[solvable])),
        restricted_s=float(np.minimum(times, limits).mean()),
        solved=float(np.mean(np.array([one.correct for one in answered])[solvable])),
    )


def _table(found: dict[_Case, list[_Run]], cases: list[_Case]) -> Table:
    def row(rule: str, users: int, unseen: bool) -> tuple[Value, ...]:
        ours, theirs = found[OURS, users, unseen], found[rule, users, unseen]
        pairs = list(zip(ours, theirs, strict=True))
        return (
            f"{users}, {'unseen' if unseen else 'known'}",
            rule,
            estimate([one.solved_s for one in theirs]),
            estimate([one.solved for one in theirs]),
            estimate([a.solved_s / b.solved_s for a, b in pairs]),
            estimate([a.restricted_s / b.restricted_s for a, b in pairs]),
        )

    return Table(
        title="Time to a correct answer over the questions that some model solves",
        columns=("users, tasks", "rule", "s", "solved", "laar / it", "restricted, laar / it"),
        rows=[row(*case) for case in cases],
        digits=3,
    )


EXPERIMENTS = declared(__name__, {"right-soonest": run})
