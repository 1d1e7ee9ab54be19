"""What each part of the cost adds, and what happens when the artifact is wrong.

Three tables. One leaves out or adds one part at a time on the paper's cells. One asks four
questions about each document, so that a cache can help at all. The last gives the picker an
artifact in which every model has another's accuracies, and lets reported outcomes correct it. Two
users ask there: with eight, every endpoint is busy whatever the picker believes, and a wrong
artifact costs little (both are shown).
"""

from __future__ import annotations

import random
from collections.abc import Callable

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
    uncached,
)
from laar.lab.fleet import Exchange, FleetSettings, VirtualFleet, ask_until_correct
from laar.lab.intervals import Estimate, estimate
from laar.lab.report import Chart, Check, Report, Table, Value
from laar.lab.sweep import sweep
from laar.lab.workloads.kv_lookup import queries
from laar.lab.workloads.kv_questions import as_questions

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
_WARM_UP_QUERIES = 900  # of 1,650: about 2,000 requests with the wrong artifact
RECOVERED = 0.5
_FEW_USERS = (2,)
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
        retry = known.retry.model_copy(update={"per_failure": 0.0, "pairs": []})
        known = known.model_copy(update={"retry": retry})
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
        ask_until_correct(fleet, asked, concurrency=USERS, on_attempt=_observer(assessor))
    )


def _policies(variant: str) -> dict[str, Policy]:
    scorer = _POLICIES.get(variant, _POLICIES["laar"])
    return {"variant": Policy(name="variant", scorers=[(scorer, 1.0)], knows_retries=True)}


def _observer(assessor: CapabilityAssessor) -> Callable[[Exchange, bool], None]:
    """Reports every attempt's outcome, as a client of `POST /outcomes` does."""

    def report(exchange: Exchange, correct: bool) -> None:
        decision = exchange.decision
        assert decision.view is not None
        assessor.success.observe(
            decision.model,
            Features(*decision.view.cell),
            decision.tried[:-1],
            correct,
            exchange.end_s,
        )

    return report


# -- a wrong artifact --------------------------------------------------------------------------


def _table_of_wrong(scope: Scope) -> tuple[Table, Estimate, int]:
    loads = _FEW_USERS if scope.quick else (_FEW_USERS[0], USERS)
    cases = [
        (arm, users, seed, scope.quick) for users in loads for arm in _ARMS for seed in scope.seeds
    ]
    results = iter(sweep(run_arm, cases, label="laar-ablation, wrong artifact"))
    by_arm = {(n, arm): [next(results) for _ in scope.seeds] for n in loads for arm in _ARMS}
    few = loads[0]
    right, wrong, online = (np.array([slow for slow, _ in by_arm[few, arm]]) for arm in _ARMS)
    # Of the mean loss: a single seed's may be near zero.
    recovered = estimate([*((wrong - online) / (wrong - right).mean())])
    rows: list[tuple[Value, ...]] = [
        (arm, *(estimate([slow for slow, _ in by_arm[n, arm]]) for n in loads)) for arm in _ARMS
    ]
    table = Table(
        title="Time to correct answer by an idle fleet's mean attempt, after the warm-up",
        columns=("what the picker knows", *(f"{n} users" for n in loads)),
        rows=rows,
    )
    return table, recovered, max(requests for _, requests in by_arm[few, _ARMS[-1]])


def run_arm(arm: str, users: int, seed: int, quick: bool) -> tuple[float, int]:
    """Queries of all cells in random order.

    Returns:
        Mean time to correct answer after the warm-up, each by the mean latency of one attempt in
        its cell on idle engines; and the requests that the warm-up took.
    """
    surface, known = surface_of(), artifact()
    if arm != _ARMS[0]:
        known = permuted(known)
    online = OnlineOutcomes() if arm == _ARMS[2] else None
    assessor = CapabilityAssessor(CapabilityModel(known), online)
    fleet = VirtualFleet(sites_of(surface), FleetSettings(), seed=seed, assessor=assessor)
    drawn = queries(per_cell=40 if quick else 110, seed=seed)
    random.Random(f"{seed}/order").shuffle(drawn)
    asked = [uncached(question) for question in as_questions(drawn, surface, seed=seed)]
    answered = ask_until_correct(fleet, asked, concurrency=users, on_attempt=_observer(assessor))
    warm_up = _WARM_UP_QUERIES * len(asked) // 1650
    slow = []
    for query, record in zip(drawn[warm_up:], answered[warm_up:], strict=True):
        attempt_s = [
            model.seconds_per_token * query.length_tokens
            + model.decode_s_per_token * surface.answer_tokens
            for model in surface.models.values()
        ]
        slow.append(record.ttca_s / np.mean(attempt_s))
    return float(np.mean(slow)), sum(len(record.models) for record in answered[:warm_up])


def permuted(known: Capability) -> Capability:
    """The artifact with each model's accuracies given to the next but one, its speed kept."""
    names = list(known.models)
    models = {
        name: known.models[other].model_copy(update={"speed": known.models[name].speed})
        for name, other in zip(names, names[2:] + names[:2], strict=True)
    }
    return known.model_copy(update={"models": models})


EXPERIMENTS = (
    Experiment(
        name="laar-ablation",
        claim="Each part of the cost earns its place, and a wrong artifact is corrected online",
        source="LAAR 5; laar.md section 6",
        run=run,
        seeds=20,
    ),
)
