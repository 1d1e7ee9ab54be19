"""How much inverted reports harm the choice of a model.

An artifact is fitted to some questions. Outcomes of every model are reported for other questions,
and some are inverted: a random tenth, or all from one reporter in ten, or in four. A third set of
questions is used to judge the choice (the model with the highest P(correct)) and to compare it with
the choice after true reports. The hourly cap is lifted, so it hides nothing.

Without `--records` the models are the lab's, with the packaged artifact, and the choice is judged
by their true accuracies. With `--records` the questions are real: the artifact is fitted to 70 %,
half of the others are reported, and the rest is used to judge, split differently for each seed.
Requests name their task.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from laar.accuracy.artifact import Capability
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.fitting.fit import fit
from laar.accuracy.fitting.outcomes import MeasuredOutcome, features_of_outcome
from laar.accuracy.fitting.records import read_records
from laar.accuracy.online import OnlineOutcomes
from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.lookups import artifact, surface_of
from laar_lab.report import Report, Table
from laar_lab.statistics import estimate
from laar_lab.sweep import sweep

INVERTED = 0.1
REPORTERS = 10
DRAWS = 10  # draws of inverted reports per seed (fits are slow, draws are quick)
PER_CELL = 25  # reported questions per cell of the lab's models
_FITTED = 0.7

_TRUE = "true reports"
_SPREAD = "a random tenth inverted"
_LIAR = "one reporter in ten, all inverted"
_QUARTER = "one reporter in four, all inverted"
_NO_NAMES = "the same, reporters not named"
_NONE = "no reports"

_Scores = Mapping[str, float]
_Report = tuple[int, str]
"""Question index and model."""


@dataclass(frozen=True, slots=True)
class _Lots:
    """The artifact, the reported questions, and the questions used to judge the choice."""

    capability: Capability
    reported: Sequence[tuple[Features, _Scores]]
    judged: Sequence[tuple[Features, _Scores]]


def run(scope: Scope) -> Report:
    """Run every way of inverting reports on each seed."""
    results = sweep(run_one, [(scope.records, seed) for seed in scope.seeds], label="poisoning")
    rows = []
    for way in (_NONE, _TRUE, _SPREAD, _LIAR, _QUARTER, _NO_NAMES):
        shares = [100.0 * result[way] for result in results]
        lost = [100.0 * (result[way] - result[_TRUE]) for result in results]
        rows.append((way, estimate(shares), estimate(lost)))
    table = Table(
        title="Correct at the first attempt",
        columns=("reports", "% right", "points against true reports"),
        rows=rows,
    )
    names = {"spread": _SPREAD, "one of ten": _LIAR}
    true = [result[_TRUE] for result in results]
    evidence = {"loss": {n: Seen([r[way] for r in results], true) for n, way in names.items()}}
    return Report(tables=[table], evidence=evidence)


def run_one(records: Path | None, seed: int) -> dict[str, float]:
    """Return the share of correct answers for each way of inverting reports."""
    lots = _lots_of_lab(seed) if records is None else _lots_of(records, seed)
    rng = random.Random(f"{seed}/poisoning")
    names = [rng.randrange(REPORTERS) for _ in lots.reported]
    reports = [(at, model) for at, (_, scores) in enumerate(lots.reported) for model in scores]

    def right(inverted: set[_Report], reporters: int, *, named: bool = True) -> float:
        return _right(lots, inverted, [str(name % reporters) if named else "" for name in names])

    def of(liar: int, reporters: int) -> set[_Report]:
        return {(at, model) for at, model in reports if names[at] % reporters == liar}

    def mean(shares: Iterable[float]) -> float:
        return float(np.mean(list(shares)))

    return {
        _NONE: _right(_Lots(lots.capability, (), lots.judged), set(), []),
        _TRUE: right(set(), REPORTERS),
        _SPREAD: mean(
            right({each for each in reports if rng.random() < INVERTED}, REPORTERS)
            for _ in range(DRAWS)
        ),
        _LIAR: mean(right(of(liar, REPORTERS), REPORTERS) for liar in range(REPORTERS)),
        _QUARTER: mean(right(of(liar, 4), 4) for liar in range(4)),
        _NO_NAMES: mean(right(of(liar, 4), 4, named=False) for liar in range(4)),
    }


def _right(lots: _Lots, inverted: set[_Report], reporters: Sequence[str]) -> float:
    """Return the share of correct choices after these reports."""
    capability = CapabilityModel(lots.capability)
    online = OnlineOutcomes(capability, half_life_s=math.inf, cap_per_hour=1e9)
    for at, (features, scores) in enumerate(lots.reported):
        for model, score in scores.items():
            correct = (score >= 0.5) != ((at, model) in inverted)
            online.observe(model, features, correct, 0.0, reporter=reporters[at])
    chosen = []
    for features, scores in lots.judged:
        models = tuple(scores)
        row = online.probabilities(models, features, 0.0)
        chosen.append(scores[models[int(np.argmax(row))]])
    return float(np.mean(chosen))


def _lots_of_lab(seed: int) -> _Lots:
    """Draw reports on the lab's models; the choice in each cell is judged by true accuracies."""
    surface, rng = surface_of(), random.Random(f"{seed}/reports")
    reported, judged = [], []
    for language in surface.languages:
        for length in surface.lengths_tokens:
            cell = Features(language, length, "kv-lookup")
            true = {name: surface.accuracy(name, language, length) for name in surface.models}
            judged.append((cell, true))
            for _ in range(PER_CELL):
                drawn = {name: float(rng.random() < p) for name, p in true.items()}
                reported.append((cell, drawn))
    rng.shuffle(reported)
    return _Lots(artifact(), reported, judged)


def _lots_of(path: Path, seed: int) -> _Lots:
    """Divide the records' questions; those not used in the fit are split anew for each seed."""
    known, rest = _fitted(path)
    drawn = list(rest)
    random.Random(f"{seed}/lots").shuffle(drawn)
    half = len(drawn) // 2
    return _Lots(known, drawn[:half], drawn[half:])


@lru_cache(maxsize=1)
def _fitted(path: Path) -> tuple[Capability, Sequence[tuple[Features, _Scores]]]:
    """Return an artifact fitted to most of the records, and the other questions."""
    outcomes = read_records([path]).outcomes
    ids = sorted({outcome.query_id for outcome in outcomes})
    random.Random("poisoning").shuffle(ids)
    seen = set(ids[: int(_FITTED * len(ids))])
    fitted = [o.model_copy(update={"text": None}) for o in outcomes if o.query_id in seen]
    known = fit(fitted, created="lab", data_sha256="0" * 64).artifact
    return known, _questions([o for o in outcomes if o.query_id not in seen])


def _questions(outcomes: Sequence[MeasuredOutcome]) -> list[tuple[Features, _Scores]]:
    found: dict[str, tuple[Features, dict[str, float]]] = {}
    for outcome in outcomes:
        asked = found.setdefault(outcome.query_id, (features_of_outcome(outcome), {}))
        asked[1][outcome.model] = outcome.right
    return list(found.values())


EXPERIMENTS = declared(__name__, {"poisoning": run})
