"""`laar up`: the demo fleet behind a real Envoy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

from laar.cli.terminal import JsonFile, report_errors

__all__ = ["up"]


def up(
    requests: Annotated[
        int | None,
        typer.Option(
            help="Verified questions per policy; without it, everything runs until Ctrl-C."
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Questions in flight at once.")] = 8,
    time_scale: Annotated[
        float, typer.Option(help="Real seconds per simulated second; 0.05 is twenty times faster.")
    ] = 0.05,
    port: Annotated[int, typer.Option(help="Envoy's port; 0 for a free one.")] = 8080,
    json_file: JsonFile = None,
) -> None:
    """Run everything on this machine: simulated endpoints, the picker, and a real Envoy."""
    with report_errors():
        import asyncio
        import tempfile

        from rich.console import Console

        from laar.lab.live.comparison import exit_status
        from laar.lab.live.up import run_fleet, show, table

        console = Console()
        with tempfile.TemporaryDirectory(prefix="laar-up-") as directory:
            tallies = asyncio.run(
                run_fleet(
                    console,
                    Path(directory),
                    requests=requests,
                    concurrency=concurrency,
                    time_scale=time_scale,
                    port=port,
                )
            )
        if not tallies:
            return
        rows = table(tallies, time_scale)
        show(console, rows)
        if json_file is not None:
            json_file.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
        raise typer.Exit(exit_status(console, tallies))
