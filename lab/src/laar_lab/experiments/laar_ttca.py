"""Figure 4 of LAAR: time to correct answer, by cell, against every baseline.

The measure is the paper's: the time until the correct answer, or until giving up. It favors giving
up early, so the time spent per correct answer is shown too.
"""

from __future__ import annotations

import math

import numpy as np

from laar.fleet.endpoints import Floats
from laar_lab.claims import Evidence, Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.lookups import (
    BASELINES,
    CONTESTANTS,
    Cell,
    Results,
    cells_of,
    name_of,
    run_cells,
)
from laar_lab.report import Report


def run(scope: Scope) -> Report:
    """Run every contestant on every cell, without and with prefix caching in the engines."""
    cells = cells_of(scope)
    repeat = run_cells(scope, CONTESTANTS, cached=False, label="laar-ttca, retries pay again")
    cached = run_cells(scope, CONTESTANTS, cached=True, label="laar-ttca, prompts kept")
    return Report(
        evidence=_evidence(repeat, cached, cells),
    )


def _ttca(results: Results, contestant: str, cell: Cell) -> list[float]:
    return [r.ttca_s for r in results[contestant, cell]]


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
        "no-cell-worse": best,
    }


def _slopes(results: Results, cells: list[Cell], ours: str, other: str) -> list[float]:
    """Return how much the gain grows per doubling of the length, by seed; NaN for one length."""
    lengths = [np.log2(cell[1]) for cell in cells]
    several = len(set(lengths)) > 1
    return [
        float(np.polyfit(lengths, by_seed, 1)[0]) if several else math.nan
        for by_seed in zip(*_shorter(results, ours, other, cells), strict=True)
    ]


EXPERIMENTS = declared(__name__, {"laar-ttca": run})
