"""`laar doctor`: find what is wrong with a deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import ConfigFile, KeyVariable, TokenFile, admin_url, key_headers, read_token


def doctor(
    config: ConfigFile = Path("laar.yaml"),
    envoy_url: Annotated[
        str | None, typer.Option("--envoy", help="URL of Envoy's admin port.")
    ] = "http://127.0.0.1:19000",
    picker_url: Annotated[
        str | None,
        typer.Option(
            "--picker", help="URL of the picker's admin port. Default: from the settings."
        ),
    ] = None,
    token_file: TokenFile = None,
    key_env: KeyVariable = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check endpoints, picker and Envoy; print each problem and its fix.

    Exits with status 1 on errors.
    """
    import asyncio
    import dataclasses

    from rich.console import Console

    from laar.doctor import Doctor, Level, show_findings
    from laar.errors import SettingError
    from laar.settings import load
    from laar.settings.listening import dialled

    try:
        settings = load(config).settings
    except SettingError as fault:
        raise SettingError(
            f"{fault}\nA running picker ignores this file until it is corrected"
        ) from None
    found = Doctor(
        settings,
        envoy=admin_url(envoy_url) if envoy_url else None,
        picker=admin_url(picker_url or dialled(settings.listen.admin)),
        token=read_token(token_file),
        key=key_headers(key_env),
    )
    findings = asyncio.run(found.examine())
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(f) for f in findings], indent=2))
    else:
        show_findings(Console(), findings)
    if any(finding.level is Level.ERROR for finding in findings):
        raise typer.Exit(1)
