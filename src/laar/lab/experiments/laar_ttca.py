"""Figure 4 of LAAR: time to correct answer, by cell, against every baseline.

The measure is the paper's: the time until the correct answer, or until giving up. That favours who
gives up early, so the time spent for each correct answer stands beside it.
"""

from __future__ import annotations

import time

import numpy as np

from laar.accuracy.capability import CapabilityModel
from laar.core.beliefs import CapabilityAssessor
from laar.lab.experiment import Experiment, Scope
from laar.lab.experiments.lookups import (
    BASELINES,
    BOUNDS,
    CONTESTANTS,
    USERS,
    Cell,
    CellResult,
    artifact,
    cells_of,
    name_of,
    questions_of,
    run_cells,
    sites_of,
    surface_of,
)
from laar.lab.intervals import Estimate, estimate, gain
from laar.lab.report import Chart, Check, Report, Table, Value
from laar.sim.fleet import FleetSettings, VirtualFleet

__all__ = ["EXPERIMENTS"]

_Results = dict[tuple[str, Cell], list[CellResult]]

PAPER_LOAD_AWARE, PAPER_AFFINITY = 0.31, 0.49
"""The paper's best cells."""
MEAN_LOAD_AWARE, MEAN_AFFINITY = 0.31, 0.70
"""What the full cost must gain on the mean of all cells."""
CLOSED = 0.5
"""Share of the way from load-aware to the oracle to be covered."""


def run(scope: Scope) -> Report:
    """Runs every contestant on every cell, without and with prompts kept by the engines."""
    cells = cells_of(scope)
    contestants = list(dict.fromkeys((*CONTESTANTS, *BOUNDS)))
    repeat = run_cells(scope, contestants, cached=False, label="laar-ttca, retries pay again")
    cached = run_cells(scope, CONTESTANTS, cached=True, label="laar-ttca, prompts kept")
    return Report(
        tables=[
            _seconds(repeat, cells, "Mean time to correct answer, s; a retry pays for its prompt"),
            _gains(repeat, cells, "laar"),
            _gains(repeat, cells, "laar-paper"),
            *(_bounds(repeat, cells, other) for other in ("load-aware", "session-affinity")),
            _seconds(cached, cells, "The same, engines keep prompts (a wrong model asked again)"),
            _spent(cached, cells),
        ],
        checks=[
            *_paper(repeat, cells, "laar-paper"),
            *_mean_gains(repeat, cells),
            _no_cell_worse(repeat, cells),
            _closed(repeat, cells),
        ],
        charts=[_chart(repeat, cells, other) for other in ("load-aware", "session-affinity")],
        remarks=[_at_64k(repeat, cells), _overhead(scope.seeds[0])],
    )


def _ttca(results: _Results, contestant: str, cell: Cell) -> list[float]:
    return [r.ttca_s for r in results[contestant, cell]]


def _gain(results: _Results, ours: str, other: str, cell: Cell) -> Estimate:
    return gain(_ttca(results, ours, cell), _ttca(results, other, cell))


def _mean_gain(results: _Results, ours: str, other: str, cells: list[Cell]) -> Estimate:
    """The mean over the cells, seed by seed."""
    ratios = [
        1.0 - np.array(_ttca(results, ours, cell)) / np.array(_ttca(results, other, cell))
        for cell in cells
    ]
    return estimate([float(value) for value in np.mean(ratios, axis=0)])


# -- tables ------------------------------------------------------------------------------------


def _seconds(results: _Results, cells: list[Cell], title: str) -> Table:
    rows: list[tuple[Value, ...]] = [
        (name_of(cell), *(estimate(_ttca(results, c, cell)) for c in CONTESTANTS)) for cell in cells
    ]
    return Table(title=title, columns=("cell", *CONTESTANTS), rows=rows)


def _spent(results: _Results, cells: list[Cell]) -> Table:
    rows: list[tuple[Value, ...]] = [
        (
            name_of(cell),
            *(estimate([r.seconds_per_correct for r in results[c, cell]]) for c in CONTESTANTS),
        )
        for cell in cells
    ]
    return Table(
        title="Time spent for each correct answer, s; engines keep prompts",
        columns=("cell", *CONTESTANTS),
        rows=rows,
    )


def _gains(results: _Results, cells: list[Cell], ours: str) -> Table:
    rows: list[tuple[Value, ...]] = [
        (name_of(cell), *(_gain(results, ours, other, cell) for other in BASELINES))
        for cell in cells
    ]
    rows.append(("mean", *(_mean_gain(results, ours, other, cells) for other in BASELINES)))
    return Table(
        title=f"How much shorter it is with {ours}, share; paired by seed",
        columns=("cell", *(f"than {other}" for other in BASELINES)),
        rows=rows,
    )


def _bounds(results: _Results, cells: list[Cell], other: str) -> Table:
    """By length, how much is to be had at all: what knowledge of the answers would bring."""
    known = ("laar", *BOUNDS)
    groups = {
        f"{length // 1024}K": [cell for cell in cells if cell[1] == length]
        for length in dict.fromkeys(length for _, length in cells)
    }
    rows: list[tuple[Value, ...]] = [
        (name, *(_mean_gain(results, ours, other, group) for ours in known))
        for name, group in {**groups, "mean": cells}.items()
    ]
    return Table(
        title=f"How much shorter than {other} it is, and would be with more knowledge, share",
        columns=("length", *known),
        rows=rows,
    )


def _chart(results: _Results, cells: list[Cell], other: str) -> Chart:
    return Chart(
        title=f"Time to correct answer, gain over {other}",
        x_label="cell",
        y_label="share",
        x=[name_of(cell) for cell in cells],
        series={
            ours: [_gain(results, ours, other, cell) for cell in cells]
            for ours in ("laar", "laar-paper")
        },
        kind="bars",
    )


# -- checks ------------------------------------------------------------------------------------


def _paper(results: _Results, cells: list[Cell], ours: str) -> list[Check]:
    checks = []
    for other, published in (
        ("load-aware", PAPER_LOAD_AWARE),
        ("session-affinity", PAPER_AFFINITY),
    ):
        cell = max(cells, key=lambda c: _gain(results, ours, other, c).mean)
        best = _gain(results, ours, other, cell)
        checks.append(
            Check(
                claim=f"{ours}: {published:.0%} over {other} in some cell",
                held=best.mean >= published,
                seen=f"{best.mean:.0%} ± {best.half:.0%} in {name_of(cell)}",
            )
        )
    slope = _slope(results, cells, ours, "session-affinity")
    checks.append(
        Check(
            claim=f"{ours}: the gain over session-affinity grows with length",
            held=slope.low > 0,
            seen=f"{slope.mean:+.1%} ± {slope.half:.1%} for each doubling",
        )
    )
    return checks


def _slope(results: _Results, cells: list[Cell], ours: str, other: str) -> Estimate:
    lengths = [np.log2(cell[1]) for cell in cells]
    gains = [
        1.0 - np.array(_ttca(results, ours, cell)) / np.array(_ttca(results, other, cell))
        for cell in cells
    ]
    return estimate(
        [float(np.polyfit(lengths, by_seed, 1)[0]) for by_seed in zip(*gains, strict=True)]
    )


def _mean_gains(results: _Results, cells: list[Cell]) -> list[Check]:
    checks = []
    for other, wanted in (("load-aware", MEAN_LOAD_AWARE), ("session-affinity", MEAN_AFFINITY)):
        mean, bound = (
            _mean_gain(results, ours, other, cells) for ours in ("laar", "oracle, all asked")
        )
        checks.append(
            Check(
                claim=f"laar: mean gain over {other} of at least {wanted:.0%}",
                held=mean.mean >= wanted,
                seen=f"{mean.mean:.1%} ± {mean.half:.1%}; {bound.mean:.1%} if it knew who is right "
                "and asked every model where nobody is",
            )
        )
    return checks


def _no_cell_worse(results: _Results, cells: list[Cell]) -> Check:
    worse = []
    for cell in cells:
        best = min(BASELINES, key=lambda c: np.mean(_ttca(results, c, cell)))
        ahead = _gain(results, "laar", best, cell)
        if ahead.high < 0:
            worse.append(f"{name_of(cell)} behind {best} by {-ahead.mean:.0%}")
    return Check(
        claim="laar: no cell worse than the best baseline of that cell, beyond the interval",
        held=not worse,
        seen="; ".join(worse) or f"none of {len(cells)}",
    )


def _closed(results: _Results, cells: list[Cell]) -> Check:
    shares = []
    for cell in cells:
        ours, theirs, bound = (
            np.array(_ttca(results, c, cell)) for c in ("laar", "load-aware", "oracle")
        )
        shares.append((theirs - ours) / (theirs - bound))
    share = estimate([float(value) for value in np.mean(shares, axis=0)])
    return Check(
        claim=f"laar: covers {CLOSED:.0%} of the way from load-aware to the oracle",
        held=share.mean >= CLOSED,
        seen=f"{share.mean:.0%} ± {share.half:.0%}, mean of the cells",
    )


# -- remarks -----------------------------------------------------------------------------------


def _at_64k(results: _Results, cells: list[Cell]) -> str:
    longest = max(length for _, length in cells)
    told = []
    for cell in cells:
        if cell[1] == longest:
            ahead = _gain(results, "laar-paper", "load-aware", cell)
            told.append(f"{name_of(cell)} {ahead.mean:+.0%} ± {ahead.half:.0%}")
    slope = _slope(results, cells, "laar-paper", "load-aware")
    return (
        f"laar-paper over load-aware at the longest length: {', '.join(told)}; over lengths "
        f"{slope.mean:+.1%} ± {slope.half:.1%} for each doubling (in the paper it shrinks)"
    )


def _overhead(seed: int) -> str:
    """Decision times at 64K tokens, by the wall clock of this machine."""
    surface = surface_of()
    asked = questions_of(surface, ("en", 65536), seed, cached=True)
    assessor = CapabilityAssessor(CapabilityModel(artifact()))
    fleet = VirtualFleet(sites_of(surface), FleetSettings(), seed=seed, assessor=assessor)
    spent = []
    for _ in range(4):
        for question in asked:
            began = time.perf_counter()
            fleet.director.decide(question.request, 0.0)
            spent.append(time.perf_counter() - began)
    p50, p99 = np.percentile(spent, [50, 99]) * 1e3
    return (
        f"one decision at 64K tokens among 5, text already hashed: p50 {p50:.2f} ms, "
        f"p99 {p99:.2f} ms (target < 1 ms)"
    )


EXPERIMENTS = (
    Experiment(
        name="laar-ttca",
        claim="The expected time to a correct answer beats load and session policies in every cell",
        source=f"LAAR 6.2, Figure 4; {USERS} users, 5 models",
        run=run,
        seeds=20,
    ),
)
