"""`laar check`: validate the settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import ConfigFile, report_errors

__all__ = ["check"]


def check(
    config: ConfigFile = Path("laar.yaml"),
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the settings' JSON schema, for editors.")
    ] = False,
) -> None:
    """Validate the settings and all files they name; print every fault, or the settings in effect.

    Each setting is printed with its origin: file and line, or `default`.
    """
    with report_errors():
        from laar.core.beliefs import read_capability
        from laar.datalayer import load_endpoints
        from laar.server.admin.outcomes import read_token
        from laar.server.tls import check_tls
        from laar.settings import Settings, as_yaml, load

        if schema:
            typer.echo(json.dumps(Settings.model_json_schema(), indent=2))
            return
        loaded = load(config)
        settings = loaded.settings
        if settings.endpoints_file is not None:
            load_endpoints(settings.endpoints_file)
        if settings.accuracy.capability is not None:
            read_capability(settings.accuracy.capability)
        read_token(settings.accuracy.outcomes_token_file)
        if settings.listen.tls is not None:
            check_tls(settings.listen.tls)
        typer.echo(as_yaml(loaded), nl=False)
