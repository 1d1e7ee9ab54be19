"""What a wrong answer costs, and two models at once, on real questions with recorded verdicts.

The nine models' answers are real, their speeds follow from their sizes (`real_questions`). The
artifact is fitted to one half of the questions, and the other half is asked without its tasks.
`routing.wrong_answer_s` and the weight of others in `laar.plugins.companions` were chosen with the
halves the other way round, so the questions judged here were not used to choose anything.

First answers are those to clients that do not ask again, one after another on an idle fleet; they
are compared with the best single model's, question by question. The best single model is the one
with the highest base rate in the artifact.

Two at once: users who ask until the answer is correct, one or two models at a time. The time is the
mean over the questions that some model solves. At 80 % load questions come in even intervals, a
quarter longer than 64 users take for each in a closed loop; the prompts are then the look-ups
of `laar_ttca`, as engines here decode any number of short answers at the same speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar_lab.claims import Evidence, Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.lookups import World, asked_of, simulated, sites_of, uncached
from laar_lab.experiments.real_questions import RecordsWorld, records_world
from laar_lab.report import Report, Table, Value
from laar_lab.sim.fleet import FleetSettings, VirtualFleet, ask_until_correct
from laar_lab.statistics import estimate
from laar_lab.sweep import grid, sweep

RECORDS = "correctness-9-models.jsonl.gz"
"""The file of graded answers in `--data`."""

USERS = 8
_LOADED = 0
_MANY = 64
_LOAD = 0.8
_QUESTIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Mean time to a correct answer, mean seconds at engines, and seconds for each question."""

    ttca_s: float
    engine_s: float
    every_s: float


def run(scope: Scope) -> Report:
    """Judge first answers on all questions, and two at once by seed."""
    path = (scope.data or Path()) / RECORDS
    ((ours, best, tasks),) = sweep(first_answers, [(path,)], label="first-answers")
    looked_up = simulated()
    cases = {
        (users, at_once): (looked_up if users == _LOADED else path, users, at_once)
        for users in ((USERS,) if scope.quick else (USERS, _LOADED))
        for at_once in (1, 2)
    }
    found = grid(run_one, cases, scope.seeds, label="first-answers, two at once")
    of = dict.fromkeys(users for users, _ in cases)
    seen = {
        users: Seen(*([one.ttca_s for one in found[users, at_once]] for at_once in (2, 1)))
        for users in of
    }
    evidence: Evidence = {
        "first": {"": Seen(ours, best)},
        f"two-{USERS}": {"": seen[USERS]},
        **({"two-loaded": {"": seen[_LOADED]}} if _LOADED in of else {}),
    }
    return Report(tables=[_firsts(ours, best, tasks), _pairs(found, list(of))], evidence=evidence)


def first_answers(path: Path) -> tuple[list[float], list[float], Sequence[str]]:
    """Return for each question whether laar's and the best single model's answer is correct."""
    world = records_world(path)
    known = CapabilityModel(world.capability)
    best = max(known.base_rates, key=known.base_rates.__getitem__)
    asked = world.every()
    fleet = VirtualFleet(
        sites_of(world.surface), FleetSettings(), seed=1, assessor=CapabilityAssessor(known)
    )
    models = [fleet.director.choose(question.request, 0.0).model for question in asked]
    ours = [float(q.is_correct(model)) for q, model in zip(asked, models, strict=True)]
    return ours, [float(q.is_correct(best)) for q in asked], world.tasks


def run_one(of: Path | World, users: int, at_once: int, seed: int) -> _Run:
    """Ask until correct, as `users` users or, for 0, at 80 % load."""
    if users:
        return _ask(of, users, at_once, seed, None)
    alone = _ask(of, _MANY, 1, seed, None)
    return _ask(of, 1, at_once, seed, alone.every_s / _LOAD)


def _ask(of: Path | World, users: int, at_once: int, seed: int, every_s: float | None) -> _Run:
    if isinstance(of, Path):
        world: RecordsWorld | World = records_world(of)
        asked = records_world(of).questions(seed, _QUESTIONS)
    else:
        world, asked = of, [uncached(question) for question in asked_of(of, seed, False)]
    assessor = CapabilityAssessor(CapabilityModel(world.capability))
    fleet = VirtualFleet(sites_of(world.surface), FleetSettings(), seed=seed, assessor=assessor)
    answered = ask_until_correct(fleet, asked, concurrency=users, at_once=at_once, every_s=every_s)
    models = list(world.surface.models)
    solved = [any(map(one.question.is_correct, models)) for one in answered]
    times = [one.ttca_s for one, can in zip(answered, solved, strict=True) if can]
    return _Run(
        ttca_s=float(np.mean(times)),
        engine_s=float(np.mean([one.engine_s for one in answered])),
        every_s=max(one.ended_s for one in answered) / len(answered),
    )


def _firsts(ours: Sequence[float], best: Sequence[float], tasks: Sequence[str]) -> Table:
    gains = 100.0 * (np.array(ours) - np.array(best))

    def row(name: str, which: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[Value, ...]:
        single = 100.0 * float(np.array(best)[which].mean())
        return name, int(which.sum()), single, estimate(gains[which].tolist())

    of = np.array(tasks)
    return Table(
        title="First answers to clients that do not ask again: points beyond the best single model",
        columns=("task", "questions", "best single, %", "gain"),
        rows=[*(row(task, of == task) for task in sorted(set(tasks))), row("all", of == of)],
        digits=1,
    )


def _pairs(found: dict[tuple[int, int], list[_Run]], of: Sequence[int]) -> Table:
    def row(users: int) -> tuple[Value, ...]:
        one, two = (found[users, at_once] for at_once in (1, 2))
        more = [b.engine_s / a.engine_s - 1.0 for a, b in zip(one, two, strict=True)]
        return (
            f"{users} users" if users else "80 % load, look-ups",
            *(estimate([each.ttca_s for each in runs]) for runs in (one, two)),
            estimate([b.ttca_s / a.ttca_s for a, b in zip(one, two, strict=True)]),
            estimate(more),
        )

    return Table(
        title="Mean time to a correct answer, s, one and two models at once",
        columns=("", "one", "two", "two / one", "more time at engines, share"),
        rows=[row(users) for users in of],
        digits=3,
    )


EXPERIMENTS = declared(__name__, {"first-answers": run})
