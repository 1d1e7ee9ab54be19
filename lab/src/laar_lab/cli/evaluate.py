"""`laar evaluate`: judge an artifact on graded answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import JsonFile


def evaluate(
    artifact: Annotated[Path, typer.Argument(help="Artifact made by `laar fit`.")],
    records: Annotated[
        list[Path],
        typer.Argument(
            help="Files of graded answers. Questions that the artifact was fitted to are skipped."
        ),
    ],
    seed: Annotated[int, typer.Option(help="Random seed for the bootstrap intervals.")] = 0,
    json_file: JsonFile = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Plot calibration, and accuracy against cost, to this file (.svg, .png)."
        ),
    ] = None,
) -> None:
    """Compare laar with the best model and an oracle at equal cost, on graded answers."""
    from laar_lab.judging.command import run_evaluate

    run_evaluate(artifact, records, seed=seed, json_file=json_file, plot_file=plot)
