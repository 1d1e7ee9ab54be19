"""`laar fit`: learn the models' success rates and speeds from outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import JsonFile


def fit(
    outcomes: Annotated[
        list[Path],
        typer.Argument(
            help="Outcomes files of `laar measure`, or files of graded answers; may be .gz."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Artifact to write.")] = Path(
        "capability.json"
    ),
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="Share of the questions to hold out for `laar evaluate`. Default: 0.2 for graded "
            "answers, 0 for outcomes files of `laar measure`.",
            min=0.0,
            max=0.9,
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Learn each model's success rates and speed from outcomes, with their uncertainty."""
    from laar.accuracy.fitting.command import run_fit

    run_fit(outcomes, out=out, hold_out=hold_out, json_file=json_file)
