"""The engine model against the figures that the Medha paper publishes."""

from __future__ import annotations

from laar.lab.experiment import Experiment, Scope
from laar.lab.report import Check, Report, Table
from laar.sim.engine.validation import published_figures

__all__ = ["EXPERIMENTS"]


def run(scope: Scope) -> Report:
    """Computes every figure; nothing in it is random."""
    figures = published_figures()
    table = Table(
        title="The engine model and the paper",
        columns=("figure", "published", "ours", "held to"),
        rows=[(f.name, f.published, f.ours, f.kind) for f in figures],
        digits=3,
    )
    checks = [
        Check(
            claim=figure.name,
            held=figure.holds,
            seen=f"{figure.ours:.3g}, published {figure.published:g}"
            + (f" ({figure.note})" if figure.note else ""),
        )
        for figure in figures
    ]
    return Report(tables=[table], checks=checks)


EXPERIMENTS = (
    Experiment(
        name="engine-validation",
        claim="The engine model agrees with the figures that Medha publishes",
        source="Medha 3.1, 6, B",
        run=run,
        seeds=1,
        quick_seeds=1,
    ),
)
