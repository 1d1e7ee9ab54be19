"""`laar up`: run the demo fleet behind a real Envoy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

from laar.cli.terminal import JsonFile, check_places
from laar.errors import SettingError


def up(
    requests: Annotated[
        int | None,
        typer.Option(
            help="Questions to ask per policy, with checked answers. Default: ask none and run "
            "until Ctrl-C.",
            min=1,
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Number of questions in flight.", min=1)] = 8,
    time_scale: Annotated[
        float,
        typer.Option(
            help="Real seconds per simulated second; 0.05 is twenty times faster.", min=0.001
        ),
    ] = 0.05,
    port: Annotated[
        int, typer.Option(help="Envoy's port; 0 for a free one.", min=0, max=65535)
    ] = 8080,
    keep_prompts: Annotated[
        bool,
        typer.Option(
            "--keep-prompts/--drop-prompts",
            help="Cache prompts at the endpoints. With --drop-prompts a retry prefills its "
            "whole prompt again.",
        ),
    ] = True,
    json_file: JsonFile = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the share of correct answers over time to this file (.svg, .png)."),
    ] = None,
) -> None:
    """Run everything on this machine: simulated endpoints, the picker, and a real Envoy."""
    import asyncio
    import tempfile

    from rich.console import Console

    from laar_lab.live import up as demo
    from laar_lab.live.comparison import exit_status

    check_places(json_file, plot)
    if requests is None and (json_file or plot):
        raise SettingError("--json, --plot: there are no figures without --requests")
    console = Console()
    with tempfile.TemporaryDirectory(prefix="laar-up-") as directory:
        compared = asyncio.run(
            demo.run_fleet(
                console,
                Path(directory),
                requests=requests,
                concurrency=concurrency,
                time_scale=time_scale,
                port=port,
                keep_prompts=keep_prompts,
            )
        )
    if compared is None:
        return
    demo.show(console, compared)
    if json_file is not None:
        document = {"rows": compared.rows, "sentences": compared.sentences}
        json_file.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    if plot is not None:
        demo.plot(plot, compared)
    raise typer.Exit(exit_status(console, compared.tallies))
