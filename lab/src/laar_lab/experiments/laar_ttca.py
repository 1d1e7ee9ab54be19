"""Figure 4 of LAAR: time to correct answer, by cell, against every baseline.

The measure is the paper's: the time until the correct answer, or until giving up. It favors giving
up early, so the time spent per correct answer is shown too.
"""

from __future__ import annotations

import math
import time

import numpy as np

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.capability import CapabilityModel
from laar.core.endpoints import Floats
from laar_lab.claims import Evidence, Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.lookups import (
    BASELINES,
    CONTESTANTS,
    Cell,
    Results,
    cells_of,
    length_name,
    name_of,
    questions_of,
    run_cells,
    simulated,
    sites_of,
)
from laar_lab.report import Report
from laar_lab.sim.fleet import FleetSettings, VirtualFleet
from laar_lab.statistics import Estimate, estimate, gain


def run(scope: Scope) -> Report:
    """Run every contestant on every cell, without and with prefix caching in the engines."""
    cells = cells_of(scope)
    repeat = run_cells(scope, CONTESTANTS, cached=False, label="laar-ttca, retries pay again")
    cached = run_cells(scope, CONTESTANTS, cached=True, label="laar-ttca, prompts kept")
    return Report(
        evidence=_evidence(repeat, cached, cells),
        remarks=[_at_64k(repeat, cells), _overhead(scope)],
    )


def _ttca(results: Results, contestant: str, cell: Cell) -> list[float]:
    return [r.ttca_s for r in results[contestant, cell]]


def _gain(results: Results, ours: str, other: str, cell: Cell) -> Estimate:
    return gain(_ttca(results, ours, cell), _ttca(results, other, cell))


def _mean_gains(results: Results, ours: str, other: str, cells: list[Cell]) -> list[float]:
    """Return the mean gain over the cells, by seed."""
    return [float(value) for value in np.mean(_shorter(results, ours, other, cells), axis=0)]


def _shorter(results: Results, ours: str, other: str, cells: list[Cell]) -> list[Floats]:
    """Return the share by which ours is shorter, by cell and seed."""
    return [
        1.0 - np.array(_ttca(results, ours, cell)) / np.array(_ttca(results, other, cell))
        for cell in cells
    ]


# -- evidence ------------------------------------------------------------------------------------


def _evidence(repeat: Results, cached: Results, cells: list[Cell]) -> Evidence:
    def against(results: Results, other: str, some: list[Cell]) -> dict[str, Seen]:
        return {
            name_of(cell): Seen(_ttca(results, "laar-paper", cell), _ttca(results, other, cell))
            for cell in some
        }

    longest = [cell for cell in cells if cell[1] == max(length for _, length in cells)]
    best = {
        name_of(cell): Seen(
            _ttca(repeat, "laar", cell),
            _ttca(repeat, min(BASELINES, key=lambda c: np.mean(_ttca(repeat, c, cell))), cell),
        )
        for cell in cells
    }
    return {
        "load-aware": against(repeat, "load-aware", cells),
        "affinity": against(repeat, "session-affinity", cells),
        "load-aware-kept": against(cached, "load-aware", cells),
        "affinity-kept": against(cached, "session-affinity", cells),
        "affinity-grows": {"": Seen(_slopes(repeat, cells, "laar-paper", "session-affinity"))},
        "load-aware-shrinks": {"": Seen(_slopes(repeat, cells, "laar-paper", "load-aware"))},
        "affinity-grows-kept": {"": Seen(_slopes(cached, cells, "laar-paper", "session-affinity"))},
        "load-aware-shrinks-kept": {"": Seen(_slopes(cached, cells, "laar-paper", "load-aware"))},
        "longest-kept": against(cached, "load-aware", longest),
        "longest": against(repeat, "load-aware", longest),
        "mean-load-aware": {"": Seen(_mean_gains(repeat, "laar", "load-aware", cells))},
        "mean-affinity": {"": Seen(_mean_gains(repeat, "laar", "session-affinity", cells))},
        "no-cell-worse": best,
        "covered": {"": Seen(_covered(repeat, cells))},
    }


def _slopes(results: Results, cells: list[Cell], ours: str, other: str) -> list[float]:
    """Return how much the gain grows per doubling of the length, by seed; NaN for one length."""
    lengths = [np.log2(cell[1]) for cell in cells]
    several = len(set(lengths)) > 1
    return [
        float(np.polyfit(lengths, by_seed, 1)[0]) if several else math.nan
        for by_seed in zip(*_shorter(results, ours, other, cells), strict=True)
    ]


def _covered(results: Results, cells: list[Cell]) -> list[float]:
    """Return the share of the gap between load-aware and the oracle that laar closes, by seed."""
    shares = []
    for cell in cells:
        ours, theirs, bound = (
            np.array(_ttca(results, c, cell)) for c in ("laar", "load-aware", "oracle")
        )
        shares.append((theirs - ours) / (theirs - bound))
    return [float(value) for value in np.mean(shares, axis=0)]


# -- remarks -----------------------------------------------------------------------------------


def _at_64k(results: Results, cells: list[Cell]) -> str:
    longest = max(length for _, length in cells)
    leads = []
    for cell in cells:
        if cell[1] == longest:
            ahead = _gain(results, "laar-paper", "load-aware", cell)
            leads.append(f"{name_of(cell)} {ahead.mean:+.0%} ± {ahead.half:.0%}")
    remark = f"laar-paper over load-aware at the longest length: {', '.join(leads)}"
    slope = estimate(_slopes(results, cells, "laar-paper", "load-aware"))
    if slope.mean != slope.mean:
        return remark
    return (
        f"{remark}; over lengths {slope.mean:+.1%} ± {slope.half:.1%} for each doubling (in the "
        "paper it shrinks)"
    )


def _overhead(scope: Scope) -> str:
    """Measure decision times at the longest length in real time on this machine."""
    world, seed = simulated(), scope.seeds[0]
    surface = world.surface
    cell = (surface.languages[0], max(surface.lengths_tokens))
    asked = questions_of(surface, cell, seed, cached=True)
    assessor = CapabilityAssessor(CapabilityModel(world.capability))
    fleet = VirtualFleet(sites_of(surface), FleetSettings(), seed=seed, assessor=assessor)
    spent = []
    for _ in range(4):
        for question in asked:
            began = time.perf_counter()
            fleet.director.decide(question.request, 0.0)
            spent.append(time.perf_counter() - began)
    p50, p99 = np.percentile(spent, [50, 99]) * 1e3
    return (
        f"one decision at {length_name(cell[1])} tokens among {len(surface.models)}, text already "
        f"hashed: p50 {p50:.2f} ms, p99 {p99:.2f} ms (target < 1 ms)"
    )


EXPERIMENTS = declared(__name__, {"laar-ttca": run})
