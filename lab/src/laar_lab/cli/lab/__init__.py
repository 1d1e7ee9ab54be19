"""`laar lab`: list and run experiments, replay a trace, fit the engine model to an endpoint.

Exit status: 0 on success, 2 for an error that the user can correct, 3 if a claim, fit or stored
result does not hold, 4 without a verdict: too few seeds, or chosen policies or workloads.
"""

from __future__ import annotations

import typer

from laar_lab.cli.lab.fit_engine import fit_engine
from laar_lab.cli.lab.list_experiments import list_experiments
from laar_lab.cli.lab.replay import replay
from laar_lab.cli.lab.results import results
from laar_lab.cli.lab.run import run

__all__ = ["app"]

app = typer.Typer(
    help="Run the serving code in virtual time, in experiments.",
    no_args_is_help=True,
    add_completion=False,
)
app.command(name="list")(list_experiments)
for command in (run, results, replay, fit_engine):
    app.command()(command)
