"""`laar check`: find settings that `laar serve` would refuse or ignore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import FAULT, ConfigFile


def check(
    config: ConfigFile = Path("laar.yaml"),
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the settings' JSON schema, for editors.")
    ] = False,
    ports: Annotated[
        bool,
        typer.Option(
            "--ports/--no-ports",
            help="Check that the addresses to listen on are free. Use --no-ports while the "
            "picker runs.",
        ),
    ] = True,
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere",
            help="Check keys and values only, for a picker on another machine or in a cluster. "
            "Files, ports, packages and the cluster are not checked.",
        ),
    ] = False,
    with_envoy: Annotated[
        bool, typer.Option("--with-envoy", help="Also check what `laar serve --with-envoy` needs.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print faults and warnings as JSON, on stdout.")
    ] = False,
) -> None:
    """Find what `laar serve` would refuse: settings, the files they name, packages and ports.

    Prints every fault and exits 2, or prints the effective settings, each with file and line.
    Settings that `laar serve` would ignore are printed as warnings.
    """
    from laar.errors import LaarError
    from laar.server.checking import faults
    from laar.settings import Settings, load
    from laar.settings.ignored import remarks
    from laar.settings.showing import as_yaml

    if schema:
        typer.echo(json.dumps(Settings.model_json_schema(), indent=2))
        return
    try:
        loaded = load(config)
        found = [] if elsewhere else faults(loaded, ports=ports)
        if with_envoy and not elsewhere:
            from laar.cli.beside import envoy_faults

            found += envoy_faults(loaded, config)
        noted = list(remarks(loaded))
    except LaarError as fault:
        if not as_json:
            raise
        found, noted = str(fault).splitlines(), []
    if as_json:
        typer.echo(json.dumps({"faults": found, "warnings": noted}, indent=2))
    else:
        for text in (*found, *(f"warning: {warning}" for warning in noted)):
            typer.echo(f"laar: {text}", err=True)
    if found:
        raise typer.Exit(FAULT)
    if not as_json:
        typer.echo(as_yaml(loaded), nl=False)
