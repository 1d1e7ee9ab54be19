"""See why a decision fell, and what is wrong with a deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from laar.commands.terminal import MIN_TABLE_WIDTH, ConfigFile, faults_told
from laar.errors import LaarError

__all__ = ["doctor", "explain"]


def explain(
    request: Annotated[Path, typer.Argument(help="The request's JSON body.")],
    config: ConfigFile = Path("laar.yaml"),
    url: Annotated[
        str | None,
        typer.Option(help="Admin port of a running picker, which knows queues and caches."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="'name: value' as on the request, such as x-laar-task; repeatable."),
    ] = None,
    path: Annotated[
        str | None, typer.Option(help="The request's path; told by the body otherwise.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the viewers' token of the running picker.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Show where a request would go and why: each candidate's terms, and a sentence."""
    with faults_told():
        import asyncio

        from rich.console import Console

        from laar.config import load_settings
        from laar.operate import (
            explain_live,
            explain_offline,
            read_body,
            read_headers,
            show_explanation,
        )

        body, headers = read_body(request), read_headers(header or [])
        if path:
            headers[":path"] = path
        if url is not None:
            token = read_body(token_file).decode().strip() if token_file else None
            shown = asyncio.run(explain_live(url, body, headers, token))
        else:
            shown = explain_offline(load_settings(config), body, headers)
        if as_json:
            typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        else:
            show_explanation(Console(width=max(Console().width, MIN_TABLE_WIDTH)), shown)


def doctor(
    config: ConfigFile = Path("laar.yaml"),
    envoy_url: Annotated[
        str | None, typer.Option("--envoy", help="Envoy's admin port.")
    ] = "http://127.0.0.1:19000",
    picker_url: Annotated[
        str | None, typer.Option("--picker", help="The picker's admin port; from the settings.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the viewers' token of the running picker.")
    ] = None,
    fix_envoy: Annotated[
        bool, typer.Option("--fix-envoy", help="Print Envoy's bootstrap, put right, instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at endpoints, picker and Envoy; print each fault with its remedy. Exits 1 on errors."""
    with faults_told():
        import asyncio
        import dataclasses

        import yaml
        from rich.console import Console

        from laar.config import load_settings
        from laar.operate import Doctor, Level, Places, admin_url, read_body, show_findings
        from laar.operate.envoy import fixed

        settings = load_settings(config)
        found = Doctor(
            settings,
            Places(
                envoy=envoy_url,
                picker=picker_url or admin_url(settings),
                token=read_body(token_file).decode().strip() if token_file else None,
            ),
        )
        findings = asyncio.run(found.examine())
        if fix_envoy:
            if found.config_dump is None:
                raise LaarError(
                    f"{envoy_url}: Envoy's admin port does not answer; name it with --envoy"
                )
            bootstrap = fixed(found.config_dump, found.needs)
            typer.echo(yaml.safe_dump(bootstrap, sort_keys=False, width=100), nl=False)
            return
        if as_json:
            typer.echo(json.dumps([dataclasses.asdict(f) for f in findings], indent=2))
        else:
            show_findings(Console(), findings)
        if any(finding.level is Level.ERROR for finding in findings):
            raise typer.Exit(1)
