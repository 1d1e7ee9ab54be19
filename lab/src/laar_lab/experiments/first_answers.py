"""What a wrong answer costs, and two models at once, on real questions with recorded verdicts.

The nine models' answers are real, their speeds follow from their sizes (`real_questions`). The
artifact is fitted to one half of the questions, and the other half is asked without its tasks.
`routing.wrong_answer_s` and the weight of others in `laar.plugins.companions` were chosen with the
halves the other way round, so the questions judged here were not used to choose anything.

First answers are those to clients that do not ask again, one after another on an idle fleet; they
are compared with the best single model's, question by question. The best single model is the one
with the highest base rate in the artifact. The same is asked of each task in turn, with a fit that
has seen the others only.

Predictions are judged by their calibration error, in ten bins of all models' P(correct). Questions
of a task are alike, so with few tasks even predictions without a bias show an error: the table has
what they would show, on average over all ways to reverse the sign of the tasks' errors.

Two at once: users who ask until the answer is correct, one or two models at a time. The time is the
mean over the questions that some model solves. At 80 % load questions come in even intervals, a
quarter longer than 64 users take for each in a closed loop; the prompts are then the look-ups
of `laar_ttca`, as engines here decode any number of short answers at the same speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

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
_BINS, _DRAWS = 10, 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Mean time to a correct answer, mean seconds at engines, and seconds for each question."""

    ttca_s: float
    engine_s: float
    every_s: float


class _Firsts(NamedTuple):
    """First answers and predictions, by question.

    Args:
        ours: 1 if laar's answer is correct, else 0.
        best: the same of the best single model.
        tasks: the questions' tasks.
        predicted: P(correct) of each model.
        right: whether each model's answer is correct.
    """

    ours: list[float]
    best: list[float]
    tasks: list[str]
    predicted: list[list[float]]
    right: list[list[bool]]


def run(scope: Scope) -> Report:
    """Judge first answers on all questions, and two at once by seed."""
    path = (scope.data or Path()) / RECORDS
    (known,) = sweep(first_answers, [(path,)], label="first-answers")
    judged = {"known": known}
    if not scope.quick:
        count = len(set(known.tasks))
        parts = sweep(first_answers, [(path, n, count) for n in range(count)], label="left out")
        columns = [list(chain.from_iterable(column)) for column in zip(*parts, strict=True)]
        judged["never seen by the fit"] = _Firsts(*columns)
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
        "first": {"": Seen(known.ours, known.best)},
        f"two-{USERS}": {"": seen[USERS]},
        **({"two-loaded": {"": seen[_LOADED]}} if _LOADED in of else {}),
    }
    tables = [_firsts(name, firsts) for name, firsts in judged.items()]
    tables += [_calibration(judged), _pairs(found, list(of))]
    return Report(tables=tables, evidence=evidence)


def first_answers(path: Path, unseen: int | None = None, groups: int = 2) -> _Firsts:
    """Ask every question once on an idle fleet."""
    world = records_world(path, unseen=unseen, groups=groups)
    known = CapabilityModel(world.capability)
    best = max(known.base_rates, key=known.base_rates.__getitem__)
    asked = world.every()
    assessor = CapabilityAssessor(known)
    fleet = VirtualFleet(sites_of(world.surface), FleetSettings(), seed=1, assessor=assessor)
    decisions = [fleet.director.choose(question.request, 0.0) for question in asked]
    models = list(world.surface.models)
    return _Firsts(
        ours=[float(q.is_correct(d.model)) for q, d in zip(asked, decisions, strict=True)],
        best=[float(q.is_correct(best)) for q in asked],
        tasks=list(world.tasks),
        predicted=[assessor.assess(q.request, models, (), 0.0).probability.tolist() for q in asked],
        right=[list(map(q.is_correct, models)) for q in asked],
    )


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


def _firsts(name: str, firsts: _Firsts) -> Table:
    gains = 100.0 * (np.array(firsts.ours) - np.array(firsts.best))

    def row(name: str, which: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[Value, ...]:
        single = 100.0 * float(np.array(firsts.best)[which].mean())
        return name, int(which.sum()), single, estimate(gains[which].tolist())

    of = np.array(firsts.tasks)
    return Table(
        title=f"First answers on tasks {name}: points beyond the best single model",
        columns=("task", "questions", "best single, %", "gain"),
        rows=[*(row(task, of == task) for task in sorted(set(of))), row("all", of == of)],
        digits=1,
    )


def _calibration(judged: Mapping[str, _Firsts]) -> Table:
    def row(firsts: _Firsts) -> list[float]:
        predicted, tasks = (
            np.array(firsts.predicted),
            np.unique(firsts.tasks, return_inverse=True)[1],
        )
        places = tasks[:, None] * _BINS + np.minimum((predicted * _BINS).astype(int), _BINS - 1)
        size = (tasks.max() + 1) * _BINS
        errors = np.bincount(places.ravel(), (predicted - firsts.right).ravel(), minlength=size)
        by_task, counts = errors.reshape(-1, _BINS), np.bincount(tasks) * predicted.shape[1]
        rng, drawn = np.random.default_rng(0), (_DRAWS, len(counts))
        signs = rng.choice((-1, 1), drawn)
        weights = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), _DRAWS)
        resampled = np.abs(weights @ by_task).sum(axis=1) / (weights @ counts)
        return [
            float(each)
            for each in (
                np.abs(by_task.sum(axis=0)).sum() / predicted.size,
                *np.quantile(resampled, (0.025, 0.975)),
                (np.abs(signs @ by_task).sum(axis=1) / predicted.size).mean(),
            )
        ]

    return Table(
        title="Calibration error of P(correct); 95 % interval over draws of tasks",
        columns=("tasks", "error", "low", "high", "without a bias"),
        rows=[(name, *row(firsts)) for name, firsts in judged.items()],
        digits=3,
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
