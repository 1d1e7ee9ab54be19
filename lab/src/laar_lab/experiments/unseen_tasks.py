"""Routing by the question's words, on graded tasks and on one that was not graded.

Each task of the records is left out in turn. An artifact is fitted to most questions of the other
tasks. It is judged, without a task header, on the remaining questions of those tasks (known) and
on all questions of the task left out (unseen). A second artifact is fitted to all questions of the
other tasks, as by `laar fit --hold-out 0`, and judged on the task left out. Each fit's estimate
for unseen tasks is compared with the result. The best single model is the one with the highest
base rate in the artifact, as an operator would choose it. Each seed splits the questions
differently. A gain on unseen tasks may be due to the choice of models, so random subsets of them
are judged in the same way, with a fit to all questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from random import Random

import numpy as np

from laar.accuracy.capability import CapabilityModel
from laar.accuracy.fitting.fit import without_retries
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.fitting.records import Records, question_of, read_records
from laar.accuracy.fitting.text import fit_text
from laar.errors import SettingError
from laar_lab.claims import Evidence, Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.judging.judge import calibration_error
from laar_lab.judging.questions import Asked, Floats, questions_of
from laar_lab.report import Report, Table, Value
from laar_lab.statistics import estimate
from laar_lab.sweep import grid, sweep

RECORDS = "correctness-9-models.jsonl.gz"
"""The file of graded answers in `--data`."""

FITTED = 0.8
"""Share of the known tasks' questions to fit, as in `laar fit` by default."""

PARTS = (3, 5, 7)
"""Numbers of models in the random subsets."""

_DRAWS = 200

_LEAST_TASK = 100
"""Minimum number of questions for judging the gain on a single task; with fewer, it is mostly
chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Results on a set of questions.

    Args:
        single: scores of the best single model.
        laar: scores of the model with the highest P(correct).
        with_task: scores of the model with the highest P(correct) if the task is named.
        unlike: share of the questions reported as unlike any graded question.
        predicted: P(correct) of each question and model.
        observed: scores of each question and model.
    """

    single: Floats
    laar: Floats
    with_task: Floats
    unlike: float
    predicted: Floats
    observed: Floats

    @property
    def gain(self) -> float:
        """Share of correct answers beyond the best single model's."""
        return float(np.mean(self.laar - self.single))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Results on the task that was left out.

    Args:
        judged: results on its questions.
        printed: mean and worst gain on unseen tasks, as estimated by the fit.
    """

    judged: Judged
    printed: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Results with a task left out: on its questions, and on others that were not fitted."""

    known: Judged
    unseen: LeftOut


def run(scope: Scope) -> Report:
    """Run every seed with each task left out.

    Raises:
        SettingError: `--data` has no graded answers.
    """
    path = (scope.data or Path()) / RECORDS
    if not path.is_file():
        raise SettingError(f"{path}: the file of graded answers is missing")
    tasks = sorted({outcome.task for outcome in _read(path).outcomes})
    cases = {task: (path, task) for task in (tasks[:2] if scope.quick else tasks)}
    by_task = grid(run_one, cases, scope.seeds, label="unseen-tasks")
    learned = sweep(run_everything, list(cases.values()), label="unseen-tasks, --hold-out 0")
    everything = dict(zip(cases, learned, strict=True))
    models = sorted({outcome.model for outcome in _read(path).outcomes})
    rng = Random(scope.seeds[0])
    parts = [rng.sample(models, number) for number in PARTS[: 1 if scope.quick else None]]
    tried = [(*case, tuple(part)) for part in parts for case in cases.values()]
    of_parts = sweep(run_everything, tried, label="unseen-tasks, subsets of models")
    return Report(
        tables=[
            _unseen(by_task, everything),
            _of_parts(parts, of_parts),
            _known(_by_seed(by_task), scope.seeds),
        ],
        evidence=_evidence(by_task, everything),
    )


def run_one(path: Path, left_out: str, seed: int) -> Run:
    """Leave a task out and fit to most questions of the others."""
    known, unseen = _parted(path, left_out)
    fitted = [outcome for outcome in known if _is_fitted(outcome, seed)]
    rest = [outcome for outcome in known if not _is_fitted(outcome, seed)]
    (of_known, of_unseen), printed = _asked(fitted, [rest, unseen])
    return Run(known=of_known, unseen=LeftOut(judged=of_unseen, printed=printed))


def run_everything(path: Path, left_out: str, models: Sequence[str] = ()) -> LeftOut:
    """Leave a task out and fit to all questions of the others, for these models if given."""
    known, unseen = (
        [outcome for outcome in outcomes if not models or outcome.model in models]
        for outcomes in _parted(path, left_out)
    )
    (judged,), printed = _asked(known, [unseen])
    return LeftOut(judged=judged, printed=printed)


def _parted(path: Path, task: str) -> tuple[list[MeasuredOutcome], list[MeasuredOutcome]]:
    """Return the outcomes of all other tasks, and of this task."""
    outcomes = _read(path).outcomes
    return [o for o in outcomes if o.task != task], [o for o in outcomes if o.task == task]


@lru_cache(maxsize=1)
def _read(path: Path) -> Records:
    return read_records([path])


def _is_fitted(outcome: MeasuredOutcome, seed: int) -> bool:
    digest = blake2b(f"{seed} {question_of(outcome.query_id)}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") < FITTED * 2**32


def _asked(
    fitted: Sequence[MeasuredOutcome], asked: Sequence[Sequence[MeasuredOutcome]]
) -> tuple[list[Judged], tuple[float, float]]:
    artifact, _ = without_retries(fitted, "lab", "0" * 64)
    text = fit_text(fitted)
    artifact = artifact.model_copy(update={"text": text})
    capability = CapabilityModel(artifact)
    judged = []
    for outcomes in asked:
        found = questions_of(artifact, outcomes)
        rates = np.array([capability.base_rates[model] for model in found.models])
        judged.append(_judged(found, rates))
    estimates = (text.gain_unseen, text.worst_unseen) if text else (None, None)
    mean, worst = (float("nan") if each is None else each for each in estimates)
    return judged, (mean, worst)


def _judged(asked: Asked, rates: Floats) -> Judged:
    rows = np.arange(len(asked.tasks))
    return Judged(
        single=asked.scores[:, int(rates.argmax())],
        laar=asked.scores[rows, asked.without_task.argmax(axis=1)],
        with_task=asked.scores[rows, asked.with_task.argmax(axis=1)],
        unlike=float(asked.unlike.mean()),
        predicted=asked.without_task,
        observed=asked.scores,
    )


_ByTask = Mapping[str, Sequence[Run]]
_BySeed = Sequence[Sequence[Run]]


def _by_seed(by_task: _ByTask) -> _BySeed:
    return list(zip(*by_task.values(), strict=True))


def _unseen(by_task: _ByTask, everything: Mapping[str, LeftOut]) -> Table:
    def row(task: str, runs: Sequence[Run]) -> tuple[Value, ...]:
        unseen = [each.unseen for each in runs]
        return (
            task,
            len(unseen[0].judged.single),
            estimate([100 * float(np.mean(each.judged.single)) for each in unseen]),
            estimate([100 * each.judged.unlike for each in unseen]),
            estimate([100 * each.judged.gain for each in unseen]),
            estimate([100 * each.printed[0] for each in unseen]),
            100 * everything[task].judged.gain,
            100 * everything[task].printed[0],
        )

    def over(name: str, *, worst: bool) -> tuple[Value, ...]:
        pick = min if worst else np.mean
        seeds = [[each.unseen for each in runs] for runs in _by_seed(by_task)]

        def seen(tasks: Iterable[LeftOut]) -> float:
            return 100 * float(pick([each.judged.gain for each in tasks]))

        def printed(tasks: Iterable[LeftOut]) -> float:
            return 100 * float(np.mean([each.printed[worst] for each in tasks]))

        return (
            name,
            "",
            "",
            "",
            estimate([seen(tasks) for tasks in seeds]),
            estimate([printed(tasks) for tasks in seeds]),
            seen(everything.values()),
            printed(everything.values()),
        )

    return Table(
        title="Ungraded tasks: points of correct answers beyond the best single model, "
        "and the fit's estimate of them",
        columns=(
            "task left out",
            "questions",
            "best single, %",
            "unlike, %",
            "gain",
            "printed",
            "gain, --hold-out 0",
            "printed, --hold-out 0",
        ),
        rows=[
            *(row(task, runs) for task, runs in by_task.items()),
            over("mean", worst=False),
            over("worst", worst=True),
        ],
        digits=1,
    )


def _of_parts(parts: Sequence[Sequence[str]], of_parts: Sequence[LeftOut]) -> Table:
    tasks = len(of_parts) // max(len(parts), 1)
    rows: list[tuple[Value, ...]] = []
    for number, part in enumerate(parts):
        unseen = of_parts[number * tasks : (number + 1) * tasks]
        gains = [100 * each.judged.gain for each in unseen]
        printed = 100 * float(np.mean([each.printed[0] for each in unseen]))
        rows.append((", ".join(sorted(part)), float(np.mean(gains)), min(gains), printed))
    return Table(
        title="Subsets of the models, fit to all questions: points beyond the best single model on "
        "ungraded tasks",
        columns=("models", "gain: mean", "worst", "printed"),
        rows=rows,
        digits=1,
    )


def _words_share(seed: Sequence[Run]) -> float:
    """Return the gain from words alone as a fraction of the gain with named tasks."""
    gained = np.concatenate([each.known.laar - each.known.single for each in seed])
    named = np.concatenate([each.known.with_task - each.known.single for each in seed])
    return float(gained.mean() / max(named.mean(), 1e-9))


def _calibration(judged: Sequence[Judged]) -> float:
    predicted = np.concatenate([each.predicted.ravel() for each in judged])
    observed = np.concatenate([each.observed.ravel() for each in judged])
    return calibration_error(predicted, observed, np.ones(len(observed)))


def _by_means(runs: Sequence[Run], seed: int) -> float:
    """Return the calibration error if each model's mean over all tasks is the estimate.

    It is averaged over draws of tasks. Only a method that predicts their difficulty can do better.
    """
    tasks = [each.unseen.judged.observed for each in runs]
    means = np.mean([observed.mean(axis=0) for observed in tasks], axis=0)
    rng, errors = np.random.default_rng(seed), []
    for _ in range(_DRAWS):
        drawn = np.concatenate([tasks[at] for at in rng.integers(0, len(tasks), len(tasks))])
        predicted = np.broadcast_to(means, drawn.shape).ravel()
        errors.append(calibration_error(predicted, drawn.ravel(), np.ones(drawn.size)))
    return float(np.mean(errors))


def _known(by_seed: _BySeed, seeds: Sequence[int]) -> Table:
    figures = {
        "gain on known tasks, points": [
            100 * float(np.mean([each.known.gain for each in seed])) for seed in by_seed
        ],
        "share of the gain with named tasks": [_words_share(seed) for seed in by_seed],
        "share of known questions reported as unlike": [
            float(np.mean([each.known.unlike for each in seed])) for seed in by_seed
        ],
        "calibration error, known": [_calibration([r.known for r in s]) for s in by_seed],
        "calibration error, unseen": [_calibration([r.unseen.judged for r in s]) for s in by_seed],
        "calibration error of each model's true mean": list(map(_by_means, by_seed, seeds)),
    }
    return Table(
        title="Known tasks without a header, and calibration",
        columns=("figure", "mean"),
        rows=[(name, estimate(values)) for name, values in figures.items()],
        digits=3,
    )


def _evidence(by_task: _ByTask, everything: Mapping[str, LeftOut]) -> Evidence:
    seeds = _by_seed(by_task)
    unseen = [[each.unseen for each in runs] for runs in seeds]
    learned = list(everything.values())

    def against_nothing(values: Iterable[float]) -> Seen:
        found = list(values)
        return Seen(found, [0.0] * len(found))

    def gain(tasks: Sequence[LeftOut]) -> float:
        return float(np.mean([each.judged.gain for each in tasks]))

    def optimism(tasks: Sequence[LeftOut]) -> float:
        return float(np.mean([each.printed[0] for each in tasks])) - gain(tasks)

    worst = {}
    for task, runs in by_task.items():
        if len(everything[task].judged.single) >= _LEAST_TASK:
            worst[task] = against_nothing(each.unseen.judged.gain for each in runs)
            worst[f"{task}, all learned"] = against_nothing(
                [everything[task].judged.gain] * len(runs)
            )
    return {
        "unseen": {
            "held back": against_nothing(map(gain, unseen)),
            "all learned": against_nothing([gain(learned)] * len(seeds)),
        },
        "worst": worst,
        "printed": {
            "held back": against_nothing(map(optimism, unseen)),
            "all learned": against_nothing([optimism(learned)] * len(seeds)),
        },
        "known": {"": against_nothing(map(_words_share, seeds))},
        "unlike": {
            "": against_nothing(float(np.mean([run.known.unlike for run in s])) for s in seeds)
        },
        "calibrated": {"": against_nothing(_calibration([r.known for r in s]) for s in seeds)},
        "calibrated-unseen": {
            "": against_nothing(_calibration([each.judged for each in s]) for s in unseen)
        },
    }


EXPERIMENTS = declared(__name__, {"unseen-tasks": run})
