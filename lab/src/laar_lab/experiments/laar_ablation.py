"""The contribution of each part of the cost, and the effect of a wrong artifact.

There are three tables. The first leaves out or adds one part at a time on the paper's cells. The
second asks four questions about each document, so that a cache can help. The third gives the picker
artifacts in which every model has another model's accuracies, and lets reported outcomes correct
them. The weight of the artifact as a prior is learned or, for comparison, fixed. There are only two
users in this table: with eight, every endpoint is busy whatever the picker estimates, and a wrong
artifact costs less (a remark shows how much).

`SHARES` of `laar.accuracy.trust` and their use were chosen on seeds from 1100 on, none of which is
run here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from laar.accuracy.artifact import Capability, RetryTerms
from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel, SpeedPrior
from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.trust import PriorTrust
from laar.core.cost import CostWeights
from laar.core.endpoints import Floats
from laar.core.interfaces import Scorer
from laar.core.policy import Policy
from laar.errors import SettingError
from laar.policies.laar.outlook import Outlook
from laar_lab.claims import Evidence, Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.lookups import (
    USERS,
    AllRight,
    Blind,
    Cell,
    CellResult,
    cells_of,
    name_of,
    questions_of,
    result_of,
    sites_of,
    uncached,
    world_from,
    world_of,
)
from laar_lab.kv_lookup import queries
from laar_lab.policies.published_cost import ExpectedTime, PublishedWeights
from laar_lab.report import Chart, Report, Table, Value
from laar_lab.sim.fleet import Exchange, FleetSettings, VirtualFleet, ask_until_correct
from laar_lab.statistics import estimate
from laar_lab.sweep import grid
from laar_lab.workloads.kv_questions import as_questions

_WEIGHTS = CostWeights()
_FIXED_WEIGHTS = PublishedWeights(k_rtt=0.05, k_queue=0.2, k_delay=0.4)


_POLICIES: dict[str, Scorer] = {
    "laar": Outlook(_WEIGHTS),
    "without queue": Outlook(CostWeights(k_queue=0.0, k_delay=0.0)),
    "fixed weights": ExpectedTime(_FIXED_WEIGHTS),
    "without cache": Blind(_WEIGHTS, "cached_tokens"),
}
VARIANTS = (
    "laar",
    "without Q",
    "without conditional Q",
    "without decode time",
    "without queue",
    "fixed weights",
    "with online outcomes",
)
SHARED = 4
"""Number of questions per document in the second table."""

_WARM_UP_QUERIES = 900  # of 1,650; with a wrong artifact they need under 2,000 requests
_FEW_USERS = 2

_RIGHT, _WRONG = "right artifact", "wrong artifact"
_ONLINE, _FIXED = "with outcomes", "with outcomes, fixed prior weight"


def run(scope: Scope) -> Report:
    """Run the three parts.

    Raises:
        SettingError: the fleet has one model.
    """
    if len(world_of(scope).surface.models) < 2:
        raise SettingError(f"{scope.fleet}: one model leaves nothing to choose; give two or more")
    cells = cells_of(scope)
    parts, ratios = _table_of_parts(scope, cells)
    cache, ratios["without cache"] = _table_of_cache(scope, cells)
    wrong, learned, remark = _table_of_wrong(scope)
    alike = [1.0] * len(scope.seeds)
    return Report(
        tables=[parts, cache, wrong],
        evidence={
            **{_slug(name): {"": Seen(_of_all(ratios[name]), alike)} for name in _WITHOUT},
            **learned,
        },
        charts=[
            Chart(
                title="Time to correct answer by variant, mean of the cells",
                x_label="",
                y_label="relative to laar",
                x=list(VARIANTS),
                series={"": [estimate(_of_all(ratios[v])) for v in VARIANTS]},
                kind="bars",
            )
        ],
        remarks=[remark],
    )


def _slug(name: str) -> str:
    return name.replace(" ", "-").lower()


# -- one part at a time ------------------------------------------------------------------------

_Ratios = list[Floats]
"""A variant's time relative to laar's, by cell and seed."""


def _table_of_parts(scope: Scope, cells: list[Cell]) -> tuple[Table, dict[str, _Ratios]]:
    seconds = _seconds(scope, VARIANTS, cells, shared=1, label="parts")
    ratios = {v: [seconds[v, cell] / seconds["laar", cell] for cell in cells] for v in VARIANTS}
    rows: list[tuple[Value, ...]] = [
        (
            name_of(cell),
            estimate([*seconds["laar", cell]]),
            *(estimate([*ratios[v][at]]) for v in VARIANTS[1:]),
        )
        for at, cell in enumerate(cells)
    ]
    rows.append(("mean", "", *(estimate(_of_all(ratios[v])) for v in VARIANTS[1:])))
    table = Table(
        title="Time to correct answer: laar in seconds, variants relative to laar",
        columns=("cell", *VARIANTS),
        rows=rows,
        digits=3,
    )
    return table, ratios


def _of_all(ratios: _Ratios) -> list[float]:
    """Return the mean over the cells, by seed."""
    return [float(value) for value in np.mean(ratios, axis=0)]


def _table_of_cache(scope: Scope, cells: list[Cell]) -> tuple[Table, _Ratios]:
    variants = ("laar", "without cache")
    seconds = _seconds(scope, variants, cells, shared=SHARED, label="cache")
    ratios = [seconds["without cache", cell] / seconds["laar", cell] for cell in cells]
    rows: list[tuple[Value, ...]] = [
        (name_of(cell), *(estimate([*seconds[v, cell]]) for v in variants), estimate([*ratio]))
        for cell, ratio in zip(cells, ratios, strict=True)
    ]
    rows.append(("mean", "", "", estimate(_of_all(ratios))))
    table = Table(
        title=f"{SHARED} questions about each document, engines cache prompts: seconds, and ratio",
        columns=("cell", *variants, "ratio"),
        rows=rows,
    )
    return table, ratios


def _seconds(
    scope: Scope, variants: Sequence[str], cells: Sequence[Cell], *, shared: int, label: str
) -> dict[tuple[str, Cell], Floats]:
    """Return each variant's time to correct answer on each cell, by seed."""
    cases = {key: (*key, shared, scope.fleet) for key in product(variants, cells)}
    runs = grid(run_variant, cases, scope.seeds, label=f"laar-ablation, {label}")
    return {key: np.array([run.ttca_s for run in found]) for key, found in runs.items()}


def run_variant(
    variant: str, cell: Cell, shared: int, fleet_file: Path | None, seed: int
) -> CellResult:
    """Run a variant on a cell; engines cache prompts only if documents are shared."""
    world = world_from(fleet_file)
    surface, known = world.surface, world.capability
    if variant == "without conditional Q":
        known = known.model_copy(update={"retry": RetryTerms()})
    online = OnlineOutcomes() if variant == "with online outcomes" else None
    assessor = CapabilityAssessor(CapabilityModel(known), online)
    fleet = VirtualFleet(
        sites_of(surface),
        FleetSettings(policy="variant"),
        seed=seed,
        assessor=AllRight(assessor) if variant == "without Q" else assessor,
        policies=_policies(variant),
    )
    if variant == "without decode time":
        fleet.director.engines.reassess(lambda _model: SpeedPrior())
    asked = questions_of(surface, cell, seed, cached=shared > 1, shared=shared)
    return result_of(
        ask_until_correct(fleet, asked, concurrency=USERS, on_attempt=_observer(assessor))
    )


def _policies(variant: str) -> dict[str, Policy]:
    scorer = _POLICIES.get(variant, _POLICIES["laar"])
    return {"variant": Policy(name="variant", scorers=[(scorer, 1.0)], knows_retries=True)}


def _observer(assessor: CapabilityAssessor) -> Callable[[Exchange, bool], None]:
    """Return a callback that reports every outcome, as a client of `POST /outcomes` does."""

    def report(exchange: Exchange, correct: bool) -> None:
        decision = exchange.decision
        assert decision.view is not None
        if assessor.online is not None:
            assessor.online.observe(
                decision.model,
                Features(*decision.view.cell),
                correct,
                exchange.end_s,
                tried=decision.tried[:-1],
            )

    return report


# -- a wrong artifact --------------------------------------------------------------------------


def mistakes(known: Capability) -> dict[str, dict[str, str]]:
    """Return permutations of models: for each model, the one whose accuracies it gets.

    These are all cyclic shifts, and a reversal of the ranking by overall accuracy.
    """
    names = list(known.models)
    found = {
        f"from {shift} further on": dict(zip(names, names[shift:] + names[:shift], strict=True))
        for shift in range(1, len(names))
    }
    ranked = sorted(names, key=lambda name: known.models[name].mean)
    return found | {"best and worst swapped": dict(zip(ranked, reversed(ranked), strict=True))}


def _table_of_wrong(scope: Scope) -> tuple[Table, Evidence, str]:
    ways = list(mistakes(world_of(scope).capability))
    if scope.quick:
        ways = ways[-2:]
    arms = [(_RIGHT, ""), *((arm, way) for way in ways for arm in (_WRONG, _ONLINE, _FIXED))]
    busy = [(_RIGHT, ""), *((_WRONG, way) for way in ways[:1])]
    runs = [(*arm, _FEW_USERS) for arm in arms] + [(*arm, USERS) for arm in busy]
    cases = {each: (*each, scope.quick, scope.fleet) for each in runs}
    by_run = grid(run_arm, cases, scope.seeds, label="laar-ablation, wrong artifact")
    slow = {each: np.array([one for one, _ in found]) for each, found in by_run.items()}

    def gained(arm: str, way: str) -> Floats:
        ours = slow[arm, "" if arm == _RIGHT else way, _FEW_USERS]
        return np.asarray(slow[_WRONG, way, _FEW_USERS] - ours)

    def of_all(arm: str) -> Floats:
        return np.asarray(np.sum([gained(arm, way) for way in ways], axis=0))

    # Relative to the mean loss, since one seed's loss may be near zero; NaN if there is no loss.
    lost = {way: float(gained(_RIGHT, way).mean()) or float("nan") for way in ways}
    total = of_all(_RIGHT).mean() or float("nan")
    rows: list[tuple[Value, ...]] = [
        (_RIGHT, estimate([*slow[_RIGHT, "", _FEW_USERS]]), "", "", "", "")
    ]
    rows += [
        (
            way,
            *(estimate([*slow[arm, way, _FEW_USERS]]) for arm in (_WRONG, _ONLINE, _FIXED)),
            *(estimate([*(gained(arm, way) / lost[way])]) for arm in (_ONLINE, _FIXED)),
        )
        for way in ways
    ]
    shares = (estimate([*(of_all(arm) / total)]) for arm in (_ONLINE, _FIXED))
    rows.append(("all", "", "", "", *shares))
    heads = ("whose accuracies", _WRONG, _ONLINE, _FIXED, "share recovered")
    table = Table(
        title="Time to correct answer / mean attempt on an idle fleet, after the warm-up",
        columns=(*heads, "fixed prior weight"),
        rows=rows,
    )
    warm_ups = zip(*(by_run[_ONLINE, way, _FEW_USERS] for way in ways), strict=True)
    evidence: Evidence = {
        "recovered": {"": Seen([*(of_all(_ONLINE) / total)])},
        "recovered-least": {way: Seen([*(gained(_ONLINE, way) / lost[way])]) for way in ways},
        "warm-up": {"": Seen([float(max(took for _, took in arms)) for arms in warm_ups])},
    }
    few, many = (
        slow[_WRONG, ways[0], users].mean() / slow[_RIGHT, "", users].mean() - 1
        for users in (_FEW_USERS, USERS)
    )
    remark = (
        f"accuracies {ways[0]}: {few:.0%} slower with {_FEW_USERS} users, {many:.0%} with {USERS}"
    )
    return table, evidence, remark


class _FullTrust(PriorTrust):
    """Lets every prior keep its full weight."""

    def share(self, model: str, own: Sequence[float] = ()) -> float:
        """Return 1, the full weight."""
        return 1.0


def run_arm(
    arm: str, way: str, users: int, quick: bool, fleet_file: Path | None, seed: int
) -> tuple[float, int]:
    """Run the queries of all cells in random order.

    Returns:
        Mean time to correct answer after the warm-up, relative to the mean latency of one attempt
        in the same cell on idle engines; and the number of requests in the warm-up.
    """
    world = world_from(fleet_file)
    surface, known = world.surface, world.capability
    if arm != _RIGHT:
        known = permuted(known, mistakes(known)[way])
    online = OnlineOutcomes() if arm in (_ONLINE, _FIXED) else None
    if online is not None and arm == _FIXED:
        online.trust = _FullTrust()
    assessor = CapabilityAssessor(CapabilityModel(known), online)
    fleet = VirtualFleet(sites_of(surface), FleetSettings(), seed=seed, assessor=assessor)
    drawn = queries(
        languages=surface.languages,
        lengths_tokens=surface.lengths_tokens,
        per_cell=40 if quick else 110,
        seed=seed,
    )
    random.Random(f"{seed}/order").shuffle(drawn)
    warm_up = _WARM_UP_QUERIES * len(drawn) // 1650
    if online is None:  # nothing is learned or cached
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
    """Return the artifact with each model's accuracies taken from another, keeping its speed."""
    models = {
        name: known.models[whose[name]].model_copy(update={"speed": model.speed})
        for name, model in known.models.items()
    }
    return known.model_copy(update={"models": models})


_WITHOUT = (
    "without conditional Q",
    "without decode time",
    "without queue",
    "without cache",
)


EXPERIMENTS = declared(__name__, {"laar-ablation": run})
