"""What each part of the cost adds, and what happens when the artifact is wrong.

Three tables. One leaves out or adds one part at a time on the paper's cells. One asks four
questions about each document, so that a cache can help at all. The last gives the picker an
artifact in which every model has another's accuracies, and lets reported outcomes correct it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from laar.accuracy.artifact import Capability
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes
from laar.core.beliefs import CapabilityAssessor
from laar.core.cost import CostWeights
from laar.core.policy import ExpectedTime, Policy
from laar.lab.experiment import Experiment, Scope
from laar.lab.experiments.lookups import (
    USERS,
    Cell,
    CellResult,
    artifact,
    cells_of,
    name_of,
    questions_of,
    result_of,
    sites_of,
    surface_of,
)
from laar.lab.fleet import Exchange, FleetSettings, VirtualFleet, ask_until_correct
from laar.lab.intervals import Estimate, estimate
from laar.lab.report import Chart, Check, Report, Table, Value
from laar.lab.sweep import sweep

__all__ = ["EXPERIMENTS"]

_WEIGHTS = CostWeights()
_POLICIES = {
    "laar": ExpectedTime(_WEIGHTS),
    "without decode time": ExpectedTime(_WEIGHTS, use_base=False),
    "without queue": ExpectedTime(CostWeights(k_queue=0.0)),
    "without cache": ExpectedTime(_WEIGHTS, use_prefix=False),
}
VARIANTS = (
    "laar",
    "without conditional Q",
    "without decode time",
    "without queue",
    "with online outcomes",
)
SHARED = 4
"""Questions about each document in the table about caches."""

WARM_UP_REQUESTS = 2000
RECOVERED = 0.5
_ARMS = ("right artifact", "wrong artifact", "wrong artifact, online outcomes")


def run(scope: Scope) -> Report:
    """Runs the three parts."""
    cells = cells_of(scope)
    parts, part_rows = _table_of_parts(scope, cells)
    cache = _table_of_cache(scope, cells)
    wrong, recovered, requests = _table_of_wrong(scope)
    return Report(
        tables=[parts, cache, wrong],
        checks=[
            Check(
                claim=f"online outcomes recover half of what a wrong artifact loses, within "
                f"{WARM_UP_REQUESTS:,} requests",
                held=recovered.mean >= RECOVERED and requests <= WARM_UP_REQUESTS,
                seen=f"{recovered.mean:.0%} ± {recovered.half:.0%} after at most {requests:,}",
            )
        ],
        charts=[
            Chart(
                title="Time to correct answer by variant, mean of the cells",
                x_label="",
                y_label="by that of laar",
                x=list(VARIANTS),
                series={"": part_rows},
                kind="bars",
            )
        ],
    )


# -- one part at a time ------------------------------------------------------------------------


def _table_of_parts(scope: Scope, cells: list[Cell]) -> tuple[Table, list[Estimate]]:
    cases = [(v, cell, seed, 1) for v in VARIANTS for cell in cells for seed in scope.seeds]
    results = iter(sweep(run_variant, cases, label="laar-ablation, parts"))
    seconds = {
        (v, cell): np.array([next(results).ttca_s for _ in scope.seeds])
        for v in VARIANTS
        for cell in cells
    }
    rows: list[tuple[Value, ...]] = []
    ratios = {v: [seconds[v, cell] / seconds["laar", cell] for cell in cells] for v in VARIANTS}
    for index, cell in enumerate(cells):
        rows.append(
            (
                name_of(cell),
                estimate([*seconds["laar", cell]]),
                *(estimate([*ratios[v][index]]) for v in VARIANTS[1:]),
            )
        )
    means = [estimate([*np.mean(ratios[v], axis=0)]) for v in VARIANTS]
    rows.append(("mean", "", *means[1:]))
    table = Table(
        title="Time to correct answer: laar in seconds, variants by that of laar",
        columns=("cell", *VARIANTS),
        rows=rows,
        digits=3,
    )
    return table, means


def _table_of_cache(scope: Scope, cells: list[Cell]) -> Table:
    variants = ("laar", "without cache")
    cases = [(v, cell, seed, SHARED) for v in variants for cell in cells for seed in scope.seeds]
    results = iter(sweep(run_variant, cases, label="laar-ablation, cache"))
    seconds = {
        (v, cell): np.array([next(results).ttca_s for _ in scope.seeds])
        for v in variants
        for cell in cells
    }
    rows: list[tuple[Value, ...]] = [
        (
            name_of(cell),
            *(estimate([*seconds[v, cell]]) for v in variants),
            estimate([*(seconds["without cache", cell] / seconds["laar", cell])]),
        )
        for cell in cells
    ]
    return Table(
        title=f"{SHARED} questions about each document, engines keep prompts: seconds, and ratio",
        columns=("cell", *variants, "ratio"),
        rows=rows,
    )


def run_variant(variant: str, cell: Cell, seed: int, shared: int) -> CellResult:
    """One variant on one cell; engines keep prompts only where documents are shared."""
    surface, known = surface_of(), artifact()
    if variant == "without conditional Q":
        known = replace(known, retry=replace(known.retry, per_failure=0.0, pairs=()))
    online = OnlineOutcomes() if variant == "with online outcomes" else None
    assessor = CapabilityAssessor(CapabilityModel(known), online)
    fleet = VirtualFleet(
        sites_of(surface),
        FleetSettings(policy="variant"),
        seed=seed,
        assessor=assessor,
        policies=_policies(variant),
    )
    asked = questions_of(surface, cell, seed, cached=shared > 1, shared=shared)
    return result_of(
        ask_until_correct(fleet, asked, concurrency=USERS, on_attempt=_reporter(fleet, assessor))
    )


def _policies(variant: str) -> dict[str, Policy]:
    scorer = _POLICIES.get(variant, _POLICIES["laar"])
    return {"variant": Policy(name="variant", scorers=[(scorer, 1.0)], knows_retries=True)}


class _reporter:  # noqa: N801
    pass


# -- a wrong artifact --------------------------------------------------------------------------


EXPERIMENTS = ()
