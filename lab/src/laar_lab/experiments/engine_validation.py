"""The engine model against the figures that the Medha paper publishes."""

from __future__ import annotations

from laar_lab.claims import Claim, Seen
from laar_lab.experiment import Experiment, Scope
from laar_lab.report import Report, Table
from laar_lab.sim.engine.validation import TOLERANCE, published_figures


def run(scope: Scope) -> Report:
    """Computes every figure; nothing in it is random."""
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


CLAIMS = (
    Claim(
        name="about",
        says="The engine model is within a tenth of each published figure",
        metric="relative distance from the published figure",
        effect="every",
        direction="below",
        bound=TOLERANCE,
        seeds=1,
        paper="Medha, sections 3.1 and 6, appendix B",
        published="the table of `laar lab run engine-validation`; it names the figures to which a "
        "constant was fitted",
    ),
    Claim(
        name="at-least",
        says="The engine model reaches each published bound",
        metric="ours by the published bound",
        effect="every",
        direction="above",
        bound=1.0,
        seeds=1,
        paper="Medha, sections 3.3 and 6",
        published="the same table",
    ),
)

EXPERIMENTS = (
    Experiment(
        name="engine-validation",
        minutes=0.1,
        about="The engine model agrees with the figures that Medha publishes",
        source="Medha, sections 3.1 and 6, appendix B",
        run=run,
        claims=CLAIMS,
        seeds=1,
        quick_seeds=1,
    ),
)
