"""`laar up` and `laar demo`: a fleet with a real Envoy on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from laar.cli.terminal import JsonFile, check_places


def up(
    time_scale: Annotated[
        float,
        typer.Option(
            help="Real seconds per simulated second; 0.05 is twenty times faster.", min=0.001
        ),
    ] = 0.05,
    port: Annotated[
        int, typer.Option(help="Envoy's port; 0 for a free one.", min=0, max=65535)
    ] = 8080,
) -> None:
    """Run simulated endpoints, the picker and a real Envoy until Ctrl-C."""
    import asyncio
    import tempfile
    from pathlib import Path

    from rich.console import Console

    from laar_lab.live.up import stay_up

    with tempfile.TemporaryDirectory(prefix="laar-up-") as directory:
        asyncio.run(stay_up(Console(), Path(directory), time_scale=time_scale, port=port))


def demo(
    seed: Annotated[int, typer.Option(help="Random seed of the requests.")] = 1,
    short: Annotated[
        bool, typer.Option("--short", help="Run a tenth of it: too little to show differences.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Compare laar with least-loaded: agents past the caches, failing engines, several models.

    Everything runs on this machine: a real Envoy, the picker, and simulated engines.
    Exits with status 1 if a request was lost that should not be, or an answer broke the contract.
    """
    import asyncio
    import tempfile
    from dataclasses import asdict
    from pathlib import Path

    import orjson
    from rich.console import Console

    from laar_lab.live.demo import BROKEN, SHORT, Size, run_demo, show

    check_places(json_file)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="laar-demo-") as directory:
        done = asyncio.run(
            run_demo(console, Path(directory), SHORT if short else Size(), seed=seed)
        )
    show(console, done)
    if json_file is not None:
        json_file.write_bytes(orjson.dumps(asdict(done), option=orjson.OPT_INDENT_2))
    raise typer.Exit(BROKEN if done.faults else 0)
