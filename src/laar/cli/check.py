"""`laar check`: find settings that `laar serve` would reject or ignore."""

from __future__ import annotations

import contextlib
import json
import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laar.cli.terminal import FAULT, ConfigFile
from laar.errors import LaarError

if TYPE_CHECKING:
    from laar.settings import Loaded, Settings


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
        bool, typer.Option("--json", help="Print errors and warnings as JSON on stdout.")
    ] = False,
) -> None:
    """Find what `laar serve` would reject: settings, the files they name, packages and ports.

    Prints all errors and exits with status 2, or prints the effective settings with their lines.
    Settings that `laar serve` would ignore are printed as warnings.
    """
    from laar.cli.beside import envoy_faults
    from laar.server.checking import faults
    from laar.settings import Settings, load
    from laar.settings.ignored import remarks

    if schema:
        typer.echo(json.dumps(Settings.model_json_schema(), indent=2))
        return
    try:
        loaded = load(config)
        found = [] if elsewhere else faults(loaded, ports=ports)
        found += envoy_faults(loaded, config) if with_envoy and not elsewhere else []
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
        typer.echo(_envoy_alone(loaded.settings) + as_yaml(loaded), nl=False)


def _envoy_alone(settings: Settings) -> str:
    """Return a comment on what Envoy does while no picker decides, if that is known."""
    from laar.envoy.endpoints_file import without_picker

    with contextlib.suppress(LaarError):  # with --elsewhere, the file may be missing
        names = [{*spec.models} for spec in settings.declared()]
        if all(names) and names and settings.envoy.eds_file and not settings.kubernetes:
            return f"# Envoy {without_picker(names, settings.routing.director.aliases)}\n"
    return ""


def as_yaml(loaded: Loaded) -> str:
    """Return the settings as YAML that `load` can read, with their origins in comments."""
    parts = []
    for name, value in loaded.settings.model_dump(mode="json").items():
        origin = loaded.origins.get(name)
        if origin is not None:
            parts.append(_entry(name, value, origin))
            continue
        parts.append(f"{name}:\n")
        parts += [
            textwrap.indent(_entry(key, below, loaded.origins[f"{name}.{key}"]), "  ")
            for key, below in value.items()
        ]
    return "".join(parts)


def _entry(name: str, value: Any, origin: str) -> str:
    import yaml

    # A comment may follow the first line only if the scalar ends on that line.
    style = '"' if isinstance(value, str) and len(value.splitlines()) > 1 else None
    text = yaml.safe_dump({name: value}, sort_keys=False, width=math.inf, default_style=style)
    first, newline, rest = text.partition("\n")
    return f"{first}  # {origin}{newline}{rest}"
