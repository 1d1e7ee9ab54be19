"""Compare the engine model with the figures published in the Medha paper."""

from __future__ import annotations

from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report, Table
from laar_lab.sim.engine.validation import published_figures


def run(scope: Scope) -> Report:
    """Compute every figure; nothing is random."""
    figures = published_figures()
    table = Table(
        title="The engine model and the paper",
        columns=("figure", "published", "ours", "held to"),
        rows=[(f.name, f.published, f.ours, f.kind) for f in figures],
        digits=3,
    )
    about = [figure for figure in figures if figure.kind == "about"]
    bounds = [figure for figure in figures if figure.kind == "at least"]
    return Report(
        tables=[table],
        evidence={
            "about": {f.name: Seen([abs(f.ours / f.published - 1.0)]) for f in about},
            "at-least": {f.name: Seen([f.ours / f.published]) for f in bounds},
        },
        remarks=[f"{figure.name}: {figure.note}" for figure in figures if figure.note],
    )


EXPERIMENTS = declared(__name__, {"engine-validation": run})
