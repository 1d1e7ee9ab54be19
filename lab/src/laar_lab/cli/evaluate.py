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
) -> None:
    """Compare laar with the best model and an oracle on graded answers, at equal cost per model."""
    from laar_lab.evaluating import run_evaluate

    run_evaluate(artifact, records, seed=seed, json_file=json_file)
