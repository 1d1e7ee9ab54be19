"""What each part of the cost adds, and what happens when the artifact is wrong.

Three tables. One leaves out or adds one part at a time on the paper's cells. One asks four
questions about each document, so that a cache can help at all. The last gives the picker an
artifact in which every model has another's accuracies, in several ways, and lets reported outcomes
correct it, with the weight of the prior as it is found and, beside it, held where it was. Two users
ask there: with eight, every endpoint is busy whatever the picker believes, and a wrong artifact
costs less (a remark says how much).

`SHARES` of `laar.accuracy.trust` and their use were chosen on seeds from 1100; none is run here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np

from laar.accuracy.artifact import Capability
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes
from laar.core.beliefs import CapabilityAssessor
from laar.core.cost import CostWeights
from laar.core.endpoints import Floats
from laar.core.interfaces import Scorer, View
from laar.core.outlook import Outlook
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
from laar.lab.intervals import Estimate, estimate
from laar.lab.report import Chart, Check, Report, Table, Value
from laar.lab.sweep import sweep
from laar.lab.workloads.kv_questions import as_questions
from laar.measuring.kv_lookup import queries
from laar.sim.fleet import Exchange, FleetSettings, VirtualFleet, ask_until_correct

__all__ = ["EXPERIMENTS"]

_WEIGHTS = CostWeights()
_FIXED_WEIGHTS = CostWeights(k_rtt=0.05, k_queue=0.2, k_delay=0.4)


class _Without:
    """The default cost, blind to one thing.

    Args:
        name: of the view's array that is nothing but zeros.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._scorer = Outlook(_WEIGHTS)

    def score(self, view: View) -> Floats:
        setattr(view, self._name, np.zeros(len(view.slots)))
        return self._scorer.score(view)


_POLICIES: dict[str, Scorer] = {
    "laar": Outlook(_WEIGHTS),
    "without decode time": _Without("base_s"),
    "without queue": Outlook(CostWeights(k_queue=0.0, k_delay=0.0)),
    "fixed weights": ExpectedTime(_FIXED_WEIGHTS),
    "without cache": _Without("cached_tokens"),
}
VARIANTS = (
    "laar",
    "without conditional Q",
    "without decode time",
    "without queue",
    "fixed weights",
    "with online outcomes",
)
SHARED = 4
"""Questions about each document in the table about caches."""

WARM_UP_REQUESTS = 2000
_WARM_UP_QUERIES = 900  # of 1,650: fewer than 2,000 requests with a wrong artifact
RECOVERED = 0.5
_FEW_USERS = 2

_RIGHT, _WRONG = "right artifact", "wrong artifact"
_ONLINE, _FIXED = "with outcomes", "with outcomes, prior of fixed weight"


def run(scope: Scope) -> Report:
    """Runs the three parts."""
    cells = cells_of(scope)
    parts, part_rows = _table_of_parts(scope, cells)
    cache, without_cache = _table_of_cache(scope, cells)
    wrong, checks, remark = _table_of_wrong(scope)
    without = {**dict(zip(VARIANTS, part_rows, strict=True)), "without cache": without_cache}
    return Report(
        tables=[parts, cache, wrong],
        checks=[
            *(
                Check(
                    claim=f"{name}: no shorter than laar beyond the interval, mean of the cells",
                    held=ratio.high >= 1.0,
                    seen=f"{ratio.mean:.3f} ± {ratio.half:.3f} of laar's time",
                )
                for name, ratio in without.items()
                if name.startswith("without")
            ),
            *checks,
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
        remarks=[remark],
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


def _table_of_cache(scope: Scope, cells: list[Cell]) -> tuple[Table, Estimate]:
    variants = ("laar", "without cache")
    cases = [(v, cell, seed, SHARED) for v in variants for cell in cells for seed in scope.seeds]
    results = iter(sweep(run_variant, cases, label="laar-ablation, cache"))
    seconds = {
        (v, cell): np.array([next(results).ttca_s for _ in scope.seeds])
        for v in variants
        for cell in cells
    }
    ratios = [seconds["without cache", cell] / seconds["laar", cell] for cell in cells]
    mean = estimate([*np.mean(ratios, axis=0)])
    rows: list[tuple[Value, ...]] = [
        (
            name_of(cell),
            *(estimate([*seconds[v, cell]]) for v in variants),
            estimate([*ratio]),
        )
        for cell, ratio in zip(cells, ratios, strict=True)
    ]
    rows.append(("mean", "", "", mean))
    table = Table(
        title=f"{SHARED} questions about each document, engines keep prompts: seconds, and ratio",
        columns=("cell", *variants, "ratio"),
        rows=rows,
    )
    return table, mean


def run_variant(variant: str, cell: Cell, seed: int, shared: int) -> CellResult:
    """One variant on one cell; engines keep prompts only where documents are shared."""
    surface, known = surface_of(), artifact()
    if variant == "without conditional Q":
        retry = known.retry.model_copy(update={"difficulty": None, "per_failure": 0.0, "pairs": []})
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


def mistakes(known: Capability) -> dict[str, dict[str, str]]:
    """Ways to be wrong: by model, whose accuracies it is given.

    All cyclic shifts of the models, and the turned order of their overall accuracy.
    """
    names = list(known.models)
    found = {
        f"from {shift} further on": dict(zip(names, names[shift:] + names[:shift], strict=True))
        for shift in range(1, len(names))
    }
    ranked = sorted(names, key=lambda name: known.models[name].mean)
    return found | {"best and worst swapped": dict(zip(ranked, reversed(ranked), strict=True))}


def _table_of_wrong(scope: Scope) -> tuple[Table, list[Check], str]:
    ways = list(mistakes(artifact()))
    if scope.quick:
        ways = [ways[1], ways[-1]]
    arms = [(_RIGHT, ""), *((arm, way) for way in ways for arm in (_WRONG, _ONLINE, _FIXED))]
    busy = [(_RIGHT, ""), *((_WRONG, way) for way in ways[:1])]
    runs = [(*arm, _FEW_USERS) for arm in arms] + [(*arm, USERS) for arm in busy]
    cases = [(*each, seed, scope.quick) for each in runs for seed in scope.seeds]
    results = iter(sweep(run_arm, cases, label="laar-ablation, wrong artifact"))
    by_run = {each: [next(results) for _ in scope.seeds] for each in runs}
    slow = {each: np.array([one for one, _ in found]) for each, found in by_run.items()}

    right = slow[_RIGHT, "", _FEW_USERS]
    loss = {way: slow[_WRONG, way, _FEW_USERS] - right for way in ways}
    gained = {
        (arm, way): slow[_WRONG, way, _FEW_USERS] - slow[arm, way, _FEW_USERS]
        for arm in (_ONLINE, _FIXED)
        for way in ways
    }
    # Of the mean loss: a single seed's may be near zero.
    recovered = {key: estimate([*(g / loss[key[1]].mean())]) for key, g in gained.items()}
    rows: list[tuple[Value, ...]] = [(_RIGHT, estimate([*right]), "", "", "", "")]
    rows += [
        (
            way,
            *(estimate([*slow[arm, way, _FEW_USERS]]) for arm in (_WRONG, _ONLINE, _FIXED)),
            *(recovered[arm, way] for arm in (_ONLINE, _FIXED)),
        )
        for way in ways
    ]
    total = np.sum([loss[way] for way in ways], axis=0).mean()
    of_all = {
        arm: estimate([*(np.sum([gained[arm, way] for way in ways], axis=0) / total)])
        for arm in (_ONLINE, _FIXED)
    }
    rows.append(("all", "", "", "", *of_all.values()))
    table = Table(
        title="Time to correct answer by an idle fleet's mean attempt, after the warm-up",
        columns=(
            "whose accuracies",
            *(_WRONG, _ONLINE, _FIXED),
            *("share recovered", "prior of fixed weight"),
        ),
        rows=rows,
    )
    requests = max(made for way in ways for _, made in by_run[_ONLINE, way, _FEW_USERS])
    worst = min(ways, key=lambda way: recovered[_ONLINE, way].mean)
    seen = recovered[_ONLINE, worst]
    checks = [
        Check(
            claim=f"online outcomes recover half of what a wrong artifact loses, within "
            f"{WARM_UP_REQUESTS:,} requests",
            held=of_all[_ONLINE].mean >= RECOVERED and requests <= WARM_UP_REQUESTS,
            seen=f"{of_all[_ONLINE].mean:.0%} ± {of_all[_ONLINE].half:.0%} over {len(ways)} ways "
            f"to be wrong, after at most {requests:,}",
        ),
        Check(
            claim="and of the one that they recover least of",
            held=seen.mean >= RECOVERED,
            seen=f"{seen.mean:.0%} ± {seen.half:.0%} of {loss[worst].mean():.2f}, {worst}",
        ),
    ]
    few, many = (
        slow[_WRONG, ways[0], users].mean() / slow[_RIGHT, "", users].mean() - 1
        for users in (_FEW_USERS, USERS)
    )
    remark = (
        f"accuracies {ways[0]}: {few:.0%} slower with {_FEW_USERS} users, {many:.0%} with {USERS}"
    )
    return table, checks, remark


def run_arm(arm: str, way: str, users: int, seed: int, quick: bool) -> tuple[float, int]:
    """Queries of all cells in random order.

    Returns:
        Mean time to correct answer after the warm-up, each by the mean latency of one attempt in
        its cell on idle engines; and the requests that the warm-up took.
    """
    surface, known = surface_of(), artifact()
    if arm != _RIGHT:
        known = permuted(known, mistakes(known)[way])
    online = {
        _ONLINE: OnlineOutcomes(),
        _FIXED: OnlineOutcomes(shares=(1.0,)),
    }.get(arm)
    assessor = CapabilityAssessor(CapabilityModel(known), online)
    fleet = VirtualFleet(sites_of(surface), FleetSettings(), seed=seed, assessor=assessor)
    drawn = queries(per_cell=40 if quick else 110, seed=seed)
    random.Random(f"{seed}/order").shuffle(drawn)
    warm_up = _WARM_UP_QUERIES * len(drawn) // 1650
    if online is None:  # nothing is learned, and no prompt kept
        drawn, warm_up = drawn[warm_up:], 0
    asked = [uncached(question) for question in as_questions(drawn, surface, seed=seed)]
    answered = ask_until_correct(fleet, asked, concurrency=users, on_attempt=_observer(assessor))
    slow = []
    for query, record in zip(drawn[warm_up:], answered[warm_up:], strict=True):
        attempt_s = [
            model.seconds_per_token * query.length_tokens
            + model.decode_s_per_token * surface.answer_tokens
            for model in surface.models.values()
        ]
        slow.append(record.ttca_s / np.mean(attempt_s))
    return float(np.mean(slow)), sum(len(record.models) for record in answered[:warm_up])


def permuted(known: Capability, whose: Mapping[str, str]) -> Capability:
    """The artifact with each model's accuracies taken from another, its speed kept."""
    models = {
        name: known.models[whose[name]].model_copy(update={"speed": model.speed})
        for name, model in known.models.items()
    }
    return known.model_copy(update={"models": models})


EXPERIMENTS = (
    Experiment(
        name="laar-ablation",
        claim="No part of the cost does harm, and a wrong artifact is corrected online",
        source="LAAR 5; laar.md section 6",
        run=run,
        seeds=20,
    ),
)
