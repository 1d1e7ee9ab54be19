"""Figure 3 of LAAR: how often a correct answer is reached, attempt by attempt."""

from __future__ import annotations

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
    """Run every contestant on every cell."""
    results = run_cells(scope, CONTESTANTS, cached=False, label="laar-success")
    cells = cells_of(scope)
    return Report(
        evidence=_evidence(results, cells),
    )


def _most(results: Results, contestant: str, cells: list[Cell]) -> list[float]:
    """Return the largest number of attempts by seed."""
    by_seed = zip(*(results[contestant, cell] for cell in cells), strict=True)
    return [float(max(int(run.attempts.max()) for run in runs)) for runs in by_seed]


def _evidence(results: Results, cells: list[Cell]) -> Evidence:
    def lead(ours: str) -> dict[str, Seen]:
        return {
            f"{name_of(cell)}, {other}": Seen(
                [run.success for run in results[ours, cell]],
                [run.success for run in results[other, cell]],
            )
            for cell in cells
            for other in BASELINES
        }

    most = [_most(results, baseline, cells) for baseline in BASELINES]
    return {
        "attempts": {"": Seen(_most(results, "laar-paper", cells))},
        "baselines-run-on": {"": Seen([max(by_seed) for by_seed in zip(*most, strict=True)])},
        "success": lead("laar-paper"),
        "success-laar": lead("laar"),
    }


EXPERIMENTS = declared(__name__, {"laar-success": run})
