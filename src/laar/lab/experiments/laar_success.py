"""Figure 3 of LAAR: how often a correct answer is reached at all, attempt by attempt."""

from __future__ import annotations

from laar.lab.experiment import Experiment, Scope
from laar.lab.experiments.lookups import (
    BASELINES,
    CONTESTANTS,
    MAX_ATTEMPTS,
    Cell,
    CellResult,
    cells_of,
    name_of,
    run_cells,
)
from laar.lab.intervals import Estimate, estimate
from laar.lab.report import Chart, Check, Report, Table, Value

__all__ = ["EXPERIMENTS"]

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
        title=f"Success by attempt, {hardest[0][1] // 1024}K tokens",
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
        checks=[*_attempts(results, cells), *_highest(results, cells)],
        charts=[chart],
    )


def _success(results: _Results, contestant: str, cell: Cell) -> Estimate:
    return estimate([r.success for r in results[contestant, cell]])


def _attempts(results: _Results, cells: list[Cell]) -> list[Check]:
    def most(contestant: str) -> int:
        return max(int(r.attempts.max()) for cell in cells for r in results[contestant, cell])

    ours = {c: most(c) for c in ("laar", "laar-paper")}
    theirs = {c: most(c) for c in BASELINES}
    return [
        Check(
            claim=f"at most {_MODELS} attempts, one for each model, in every seed",
            held=max(ours.values()) <= _MODELS,
            seen=", ".join(f"{c} {n}" for c, n in ours.items()),
        ),
        Check(
            claim=f"a baseline runs on to {MAX_ATTEMPTS}",
            held=max(theirs.values()) == MAX_ATTEMPTS,
            seen=", ".join(f"{c} {n}" for c, n in theirs.items()),
        ),
    ]


def _highest(results: _Results, cells: list[Cell]) -> list[Check]:
    checks = []
    for ours in ("laar", "laar-paper"):
        behind = []
        for cell in cells:
            for other in BASELINES:
                pairs = zip(results[ours, cell], results[other, cell], strict=True)
                lead = estimate([a.success - b.success for a, b in pairs])
                if lead.mean < 0:
                    behind.append(f"{name_of(cell)} {other} by {-lead.mean:.3f}")
        checks.append(
            Check(
                claim=f"{ours} has the highest final success in every cell, ties allowed",
                held=not behind,
                seen=f"{len(cells)} cells" if not behind else "behind in " + "; ".join(behind),
            )
        )
    return checks


EXPERIMENTS = (
    Experiment(
        name="laar-success",
        claim="LAAR reaches the highest success rate in at most five attempts",
        source="LAAR 6.2, Figure 3",
        run=run,
        seeds=20,
    ),
)
