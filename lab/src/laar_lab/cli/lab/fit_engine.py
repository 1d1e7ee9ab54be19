"""`laar lab fit-engine`: fit the engine model to a running engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from laar.cli.terminal import check_places, key_headers
from laar_lab.cli.lab.options import NOT_HELD, Json, lab_console


def fit_engine(
    url: Annotated[
        str, typer.Argument(help="URL of a running engine, such as http://10.0.0.7:8000.")
    ],
    model: Annotated[
        str | None, typer.Option(help="Model to measure. Default: the first that the engine lists.")
    ] = None,
    longest: Annotated[int, typer.Option(help="Longest prompt to measure, in tokens.")] = 8000,
    max_num_batched_tokens: Annotated[
        int,
        typer.Option(
            min=1,
            help="The engine's setting of the same name, which its metrics page does not report.",
        ),
    ] = 2048,
    repeat: Annotated[
        int, typer.Option(min=1, help="Measurements per point; the fastest is used.")
    ] = 8,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.01, help="Largest relative error at which the model is considered to fit."
        ),
    ] = 0.25,
    key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the API key.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the profile to this file (.yaml).")
    ] = None,
    json: Json = None,
) -> None:
    """Fit the lab's engine model to a running engine. Exit status: 0 if the model fits, else 3.

    The engine should serve no other requests during the measurement.
    To use the profile, give its path in a fleet file.
    """
    from rich.progress import Progress

    from laar_lab.fit_engine import FitSettings, check_out, write_profile
    from laar_lab.fit_engine import fit_engine as run_fit
    from laar_lab.report import dump, show

    check_out(out)
    check_places(json)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("fit-engine")
        fitted = run_fit(
            FitSettings(
                url=url,
                model=model,
                longest=longest,
                max_num_batched_tokens=max_num_batched_tokens,
                repeat=repeat,
                tolerance=tolerance,
                headers=key_headers(key_env),
            ),
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    show(fitted.report, lab_console())
    if out:
        write_profile(fitted, out)
    if json:
        json.write_bytes(dump(fitted.report, endpoint=fitted.profile.name))
    if not fitted.report.held:
        raise typer.Exit(NOT_HELD)
