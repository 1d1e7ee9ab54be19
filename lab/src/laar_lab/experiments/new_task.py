"""What the picker learns about an ungraded task from reports, or from signs in answers alone.

A fleet serves real questions for a day; no header names their task. The model with the highest
P(correct) answers, except that one question in ten goes to a random model. The picker learns from
a report on each answer, or from signs in the answers. One sign is the model's confidence
(`sureness`), whose means for correct and for wrong answers are one standard deviation apart.
Another is the form: 15 % of wrong and 1.2 % of correct answers are truncated or malformed. The
records have no signs, so these are drawn at random.

One kind of fleet has an artifact fitted to all tasks but one, and gets the questions of that task.
The other kind has no artifact and gets the questions of all tasks. Half of the questions are asked;
the other half is used to judge the P(correct) of every model, and the choice of a model. Seeds
split the questions differently.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.fitting.fit import without_retries
from laar.accuracy.fitting.records import Records, read_records
from laar.accuracy.fitting.text import fit_text
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.reports import OutcomeReports
from laar.accuracy.signs import BROKEN_CALL, CUT, FORM, PLAIN, SURE, Sign, Signs
from laar.core.request import Api, Request
from laar.errors import SettingError
from laar_lab.claims import Evidence, Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.unseen_tasks import RECORDS
from laar_lab.judging.judge import calibration_error
from laar_lab.judging.questions import Floats
from laar_lab.report import Report, Table, Value
from laar_lab.statistics import estimate
from laar_lab.sweep import sweep

REQUESTS = 2_000
STEPS = (0, 50, 200, REQUESTS)
"""Numbers of requests after which P(correct) is judged."""

DAY_S = 86_400.0
EXPLORES = 0.1
REPORTED = 0.05  # share of the answers that are reported in addition to signs

REPORTS, SURENESS, FORMS, SOME = (
    "every answer reported",
    "sureness",
    "form",
    "sureness, one of 20 reported",
)
WAYS = (REPORTS, SURENESS, FORMS, SOME)

ALL = "no artifact, all tasks"
"""Name of the fleet without an artifact; the others are named after the task their artifact
lacks."""

_EDGES = (-0.3, 0.5, 1.3)  # between confidence levels, in standard deviations
_BAD_FORM = (0.15, 0.012)  # fractions of wrong and of correct answers


@dataclass(frozen=True, slots=True)
class _Question:
    request: Request
    right: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Judged:
    """P(correct) and verdicts for the questions used to judge, by question and model.

    Args:
        predicted: P(correct).
        right: the verdicts.
    """

    predicted: Floats
    right: Floats

    @property
    def chosen(self) -> Judged:
        """The same for the model with the highest P(correct); ties are averaged."""
        predicted = self.predicted.max(axis=1, keepdims=True)
        best = self.predicted == predicted
        right = (self.right * best).sum(axis=1, keepdims=True) / best.sum(axis=1, keepdims=True)
        return Judged(predicted, right)


Learned = Mapping[str, Sequence[Judged]]
"""P(correct) and verdicts after each of `STEPS`, by way of learning."""


def run(scope: Scope) -> Report:
    """Run both kinds of fleet, with each task left out, on every seed.

    Raises:
        SettingError: `--data` has no graded answers.
    """
    path = (scope.data or Path()) / RECORDS
    if not path.is_file():
        raise SettingError(f"{path}: the file of graded answers is missing")
    tasks = sorted({outcome.task for outcome in _read(path).outcomes})
    fleets = [*(tasks[:2] if scope.quick else tasks), ALL]
    seeds = tuple(scope.seeds)
    found = sweep(run_fleet, [(path, fleet, seeds) for fleet in fleets], label="new-task")
    strange, without = found[:-1], found[-1]
    by_seed = [[each[at] for each in strange] for at in range(len(seeds))]
    first, second = "an artifact that lacks the task", "no artifact"
    return Report(
        tables=[_table(first, by_seed), _table(second, [[each] for each in without])],
        evidence=_evidence(by_seed, without),
    )


def run_fleet(path: Path, fleet: str, seeds: Sequence[int]) -> list[Learned]:
    """Run a fleet on each seed."""
    capability, questions = _fleet(path, fleet)
    return [
        {way: _lived(capability, questions, way, random.Random(f"{seed}/{fleet}")) for way in WAYS}
        for seed in seeds
    ]


@lru_cache(maxsize=1)
def _read(path: Path) -> Records:
    return read_records([path])


def _fleet(path: Path, fleet: str) -> tuple[CapabilityModel, list[_Question]]:
    outcomes = _read(path).outcomes
    capability = CapabilityModel()
    if fleet != ALL:
        graded = [outcome for outcome in outcomes if outcome.task != fleet]
        artifact, _ = without_retries(graded, "lab", "0" * 64)
        capability = CapabilityModel(artifact.model_copy(update={"text": fit_text(graded)}))
    texts: dict[str, str] = {}
    right: dict[str, dict[str, bool]] = {}
    for outcome in outcomes:
        if fleet in (outcome.task, ALL):
            texts[outcome.query_id] = outcome.text or ""
            right.setdefault(outcome.query_id, {})[outcome.model] = bool(outcome.correct)
    models = max(map(len, right.values()))
    return capability, [
        _Question(Request(id=id_, api=Api.CHAT, model="auto", question=text, chars=len(text)), of)
        for id_, text in texts.items()
        if len(of := right[id_]) == models
    ]


def _lived(
    capability: CapabilityModel, questions: Sequence[_Question], way: str, rng: random.Random
) -> list[Judged]:
    """Simulate a day with one way of learning; return a `Judged` for each of `STEPS`."""
    online = OnlineOutcomes()
    assessor = CapabilityAssessor(capability, online)
    reports = OutcomeReports(online)
    reports.signs = None if way == REPORTS else Signs()
    models = tuple(sorted(questions[0].right))
    drawn = rng.sample(questions, len(questions))
    asked, judging = drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
    judged = []
    for number in range(REQUESTS + 1):
        now = DAY_S * number / REQUESTS
        if number in STEPS:
            judged.append(_judged(assessor, judging, models, now))
        question, id_ = rng.choice(asked), str(number)
        known = assessor.assess(question.request, models, (), now)
        best = np.flatnonzero(known.probability == known.probability.max())
        model = rng.choice(models if rng.random() < EXPLORES else [models[at] for at in best])
        right = question.right[model]
        reports.decided(id_, model, Features(*known.cell), (), now=now)
        if way != REPORTS:
            reports.signed(id_, _sign(way, right, rng), now)
        if way == REPORTS or (way == SOME and rng.random() < REPORTED):
            reports.report(id_, right, now)
    return judged


def _sign(way: str, right: bool, rng: random.Random) -> Sign:
    if way == FORMS:
        bad = rng.random() < _BAD_FORM[right]
        return Sign((CUT if rng.random() < 0.7 else BROKEN_CALL) if bad else PLAIN, FORM)
    level = rng.gauss(float(right), 1.0)
    return Sign(BROKEN_CALL + 1 + sum(level > edge for edge in _EDGES), SURE)


def _judged(
    assessor: CapabilityAssessor, questions: Sequence[_Question], models: Sequence[str], now: float
) -> Judged:
    known = [assessor.assess(question.request, models, (), now) for question in questions]
    return Judged(
        np.array([each.probability for each in known]),
        np.array([[question.right[model] for model in models] for question in questions], float),
    )


def _error(judged: Sequence[Judged]) -> float:
    """Return the calibration error of P(correct) over all fleets, questions and models."""
    predicted = np.concatenate([each.predicted.ravel() for each in judged])
    right = np.concatenate([each.right.ravel() for each in judged])
    return calibration_error(predicted, right, np.ones(len(right)))


def _right(fleets: Sequence[Learned], way: str, step: int) -> float:
    """Return the share of correct choices, averaged over fleets."""
    return float(np.mean([each[way][step].chosen.right.mean() for each in fleets]))


def _share(fleets: Sequence[Learned], way: str) -> float:
    """Return the gain from one way of learning after a day, relative to the gain from reports."""
    start = _right(fleets, REPORTS, 0)
    gained = _right(fleets, REPORTS, -1) - start
    return (_right(fleets, way, -1) - start) / max(gained, 1e-9)


def _errors(
    by_seed: Sequence[Sequence[Learned]], way: str, step: int
) -> tuple[list[float], list[float]]:
    """Return the calibration errors over all models and for the chosen one, by seed."""
    judged = [[each[way][step] for each in fleets] for fleets in by_seed]
    everyone = [_error(each) for each in judged]
    return everyone, [_error([known.chosen for known in each]) for each in judged]


def _table(name: str, by_seed: Sequence[Sequence[Learned]]) -> Table:
    rows: list[tuple[Value, ...]] = []
    for way in WAYS:
        for step, requests in enumerate(STEPS):
            right = estimate([100 * _right(fleets, way, step) for fleets in by_seed])
            everyone, chosen = (estimate(each) for each in _errors(by_seed, way, step))
            rows.append((way, requests, right, everyone, chosen))
    return Table(
        title=f"{name.capitalize()}: accuracy estimates by number of requests",
        columns=("learned by", "requests", "right, %", "calibration error", "of the chosen model"),
        rows=rows,
        digits=3,
    )


def _evidence(by_seed: Sequence[Sequence[Learned]], without: Sequence[Learned]) -> Evidence:
    alone = [[each] for each in without]
    everyone, chosen = _errors(by_seed, REPORTS, STEPS.index(200))
    signs = (SURENESS, FORMS)

    def against_nothing(values: Iterable[float]) -> Seen:
        found = [float(value) for value in values]
        return Seen(found, [0.0] * len(found))

    return {
        "soon": {"": against_nothing(everyone)},
        "soon-chosen": {"": against_nothing(chosen)},
        "signs": {way: against_nothing(_share(each, way) for each in alone) for way in signs},
        "calibrated": {way: against_nothing(_errors(alone, way, -1)[0]) for way in signs},
        "some": {"": against_nothing(_errors(alone, SOME, -1)[0])},
    }


EXPERIMENTS = declared(__name__, {"new-task": run})
