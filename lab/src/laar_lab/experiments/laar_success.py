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
    by_cell,
    cells_of,
    length_name,
    name_of,
    run_cells,
    world_of,
)
from laar_lab.report import Chart, Report
from laar_lab.sim.fleet.clients import MAX_ATTEMPTS
from laar_lab.statistics import Estimate, estimate

_MODELS = 5


def run(scope: Scope) -> Report:
    """Run every contestant on every cell."""
    results = run_cells(scope, CONTESTANTS, cached=False, label="laar-success")
    cells = cells_of(scope)
    title = "Share of queries with a correct answer in the end"
    hardest = [cell for cell in cells if cell[1] == max(length for _, length in cells)]
    attempts = range(1, MAX_ATTEMPTS + 1)

    def curve(contestant: str) -> list[Estimate]:
        runs = [one for cell in hardest for one in results[contestant, cell]]
        return [estimate([one.success_by(k) for one in runs]) for k in attempts]

    chart = Chart(
        title=f"Success by attempt, {length_name(hardest[0][1])} tokens",
        x_label="attempts",
        y_label="share of queries answered correctly",
        x=list(attempts),
        series={c: curve(c) for c in CONTESTANTS if c != "oracle"},
    )
    return Report(
        tables=[by_cell(title, results, CONTESTANTS, lambda one: one.success)],
        evidence=_evidence(results, cells, len(world_of(scope).surface.models)),
        charts=[chart],
    )


def _most(
    results: Results, contestant: str, cells: list[Cell], models: int = _MODELS
) -> list[float]:
    """Return the largest number of attempts by seed, minus the number of models beyond five."""
    by_seed = zip(*(results[contestant, cell] for cell in cells), strict=True)
    beyond = models - _MODELS
    return [float(max(int(run.attempts.max()) for run in runs) - beyond) for runs in by_seed]


def _evidence(results: Results, cells: list[Cell], models: int) -> Evidence:
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
