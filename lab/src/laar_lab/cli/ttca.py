"""`laar ttca`: send held-out questions with retries, policy by policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import JsonFile, check_places
from laar_lab.cli.lab.lookups import Languages, Lengths


def ttca(
    url: Annotated[
        str | None, typer.Option(help="Gateway URL; omit it to start the demo fleet.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to measure; repeatable. The first is compared with the others. "
            "With --url, the picker's settings must list the policies of plug-ins. Default: laar, "
            "laar-paper, load-aware and session-affinity."
        ),
    ] = None,
    per_cell: Annotated[
        int, typer.Option(help="Number of held-out look-ups for each language and length.", min=1)
    ] = 10,
    language: Languages = None,
    length: Lengths = None,
    seed: Annotated[int, typer.Option(help="Random seed of the look-ups.")] = 0,
    concurrency: Annotated[int, typer.Option(help="Number of questions in flight.", min=1)] = 8,
    time_scale: Annotated[
        float,
        typer.Option(help="Real seconds per simulated second, in the started fleet.", min=0.001),
    ] = 0.05,
    capability: Annotated[
        Path | None,
        typer.Option(help="Artifact for the started fleet. Default: the demo fleet's own."),
    ] = None,
    keep_prompts: Annotated[
        bool,
        typer.Option(
            "--keep-prompts/--drop-prompts",
            help="Cache prompts at the started endpoints. With --drop-prompts a retry prefills "
            "its whole prompt again.",
        ),
    ] = True,
    against_lab: Annotated[
        int | None,
        typer.Option(
            help="Compare with N lab runs; exit with status 3 if a figure is outside their range.",
            min=2,
        ),
    ] = None,
    json_file: JsonFile = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the figures to this file (.svg, .png).")
    ] = None,
) -> None:
    """Send held-out questions with retries, and report each policy's time to correct answer."""
    from laar.accuracy.assessor import read_capability
    from laar_lab.kv_lookup import LANGUAGES, LENGTHS_TOKENS, queries
    from laar_lab.live.ttca import Ttca, run_ttca

    check_places(json_file, plot)
    if capability is not None and url is None:
        read_capability(capability)  # report an unusable artifact before the fleet starts
    wanted = Ttca(
        asked=queries(
            languages=language or LANGUAGES,
            lengths_tokens=length or LENGTHS_TOKENS,
            per_cell=per_cell,
            seed=seed,
            split="evaluate",
        ),
        policies=policy or ("laar", "laar-paper", "load-aware", "session-affinity"),
        concurrency=concurrency,
        url=url,
        time_scale=time_scale,
        capability=capability,
        keep_prompts=keep_prompts,
        lab_runs=against_lab,
    )
    raise typer.Exit(run_ttca(wanted, json_file=json_file, plot_file=plot))
