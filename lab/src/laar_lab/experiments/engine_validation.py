"""Compare the engine model with the figures published in the Medha paper."""

from __future__ import annotations

from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report
from laar_lab.sim.engine.validation import published_figures


def run(scope: Scope) -> Report:
    """Compute every figure; nothing is random."""
    figures = published_figures()
    about = [figure for figure in figures if figure.kind == "about"]
    bounds = [figure for figure in figures if figure.kind == "at least"]
    return Report(
        evidence={
            "about": {f.name: Seen([abs(f.ours / f.published - 1.0)]) for f in about},
            "at-least": {f.name: Seen([f.ours / f.published]) for f in bounds},
        },
        remarks=[f"{figure.name}: {figure.note}" for figure in figures if figure.note],
    )


EXPERIMENTS = declared(__name__, {"engine-validation": run})
