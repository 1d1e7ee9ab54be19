"""Figure 3 of LAAR: how often a correct answer is reached at all, attempt by attempt."""

from __future__ import annotations

from laar_lab.claims import Evidence, Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.lookups import (
    BASELINES,
    CONTESTANTS,
    Cell,
    CellResult,
    cells_of,
    length_name,
    name_of,
    run_cells,
    world_of,
)
from laar_lab.report import Chart, Report, Table, Value
from laar_lab.sim.fleet.clients import MAX_ATTEMPTS
from laar_lab.statistics import Estimate, estimate

_MODELS = 5
_Results = dict[tuple[str, Cell], list[CellResult]]


def run(scope: Scope) -> Report:
    """Runs every contestant on every cell."""
    results = run_cells(scope, CONTESTANTS, cached=False, label="laar-success")
    cells = cells_of(scope)
    rows: list[tuple[Value, ...]] = [
        (name_of(cell), *(_success(results, c, cell) for c in CONTESTANTS)) for cell in cells
    ]
    hardest = [cell for cell in cells if cell[1] == max(length for _, length in cells)]
    chart = Chart(
        title=f"Success by attempt, {length_name(hardest[0][1])} tokens",
        x_label="attempts",
        y_label="share of queries answered correctly",
        x=list(range(1, MAX_ATTEMPTS + 1)),
        series={
            c: [
                estimate([r.success_by(k) for cell in hardest for r in results[c, cell]])
                for k in range(1, MAX_ATTEMPTS + 1)
            ]
            for c in CONTESTANTS
            if c != "oracle"
        },
    )
    table = Table(
        title="Share of queries with a correct answer in the end",
        columns=("cell", *CONTESTANTS),
        rows=rows,
    )
    return Report(
        tables=[table],
        evidence=_evidence(results, cells, len(world_of(scope).surface.models)),
        charts=[chart],
    )


def _success(results: _Results, contestant: str, cell: Cell) -> Estimate:
    return estimate([r.success for r in results[contestant, cell]])


def _most(
    results: _Results, contestant: str, cells: list[Cell], models: int = _MODELS
) -> list[float]:
    """Attempts of the question that needed most, by seed, less the models beyond five."""
    by_seed = zip(*(results[contestant, cell] for cell in cells), strict=True)
    beyond = models - _MODELS
    return [float(max(int(run.attempts.max()) for run in runs) - beyond) for runs in by_seed]


def _evidence(results: _Results, cells: list[Cell], models: int) -> Evidence:
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
        "attempts": {"": Seen(_most(results, "laar-paper", cells, models))},
        "attempts-laar": {"": Seen(_most(results, "laar", cells, models))},
        "baselines-run-on": {"": Seen([max(by_seed) for by_seed in zip(*most, strict=True)])},
        "success": lead("laar-paper"),
        "success-laar": lead("laar"),
    }


EXPERIMENTS = declared(__name__, {"laar-success": run})
