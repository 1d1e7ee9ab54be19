"""See why a decision fell, and what is wrong with a deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import MIN_TABLE_WIDTH, ConfigFile, JsonFile, report_errors
from laar.errors import LaarError

__all__ = ["doctor", "explain", "tune"]


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
    with report_errors():
        import asyncio

        from rich.console import Console

        from laar.cli.explaining import (
            explain_live,
            explain_offline,
            read_body,
            read_headers,
            show_explanation,
        )
        from laar.settings import load_settings

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
    with report_errors():
        import asyncio
        import dataclasses

        import yaml
        from rich.console import Console

        from laar.cli.explaining import read_body
        from laar.doctor import Doctor, Level, Places, admin_url, show_findings
        from laar.doctor.envoy import fixed
        from laar.settings import load_settings

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


def tune(
    trace: Annotated[
        Path | None, typer.Argument(help="JSON lines; see `laar.lab.trace`. None with --live.")
    ] = None,
    fleet: Annotated[Path | None, typer.Option(help="Fleet description (YAML).")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Follow the climb of a running picker.")
    ] = False,
    picker: Annotated[
        str, typer.Option(help="The running picker's admin address.")
    ] = "http://127.0.0.1:9090",
    token_file: Annotated[
        Path | None, typer.Option(help="Token of the picker's admin port.")
    ] = None,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="With --live: end the climb now.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --live: stay until the climb has ended.")
    ] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write the best weights found here (YAML).")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="What is made small; by default as `tuner.objective`.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Requests in a window; by default as `tuner.window`.")
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="Windows at most.")] = 60,
    seed: Annotated[int, typer.Option(help="Of proposals, network and ties.")] = 0,
    time_scale: Annotated[float, typer.Option(help="Stretch the trace's time.")] = 1.0,
    block_tokens: Annotated[int, typer.Option(help="Tokens of one of `hash_ids`.")] = 512,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the path.")] = None,
) -> None:
    """Tune the weights of the cost, on a trace in the lab or on a live picker."""
    with report_errors():
        from laar.cli.tuning import run_tune

        run_tune(
            trace=trace,
            fleet=fleet,
            live=live,
            picker=picker,
            token_file=token_file,
            freeze=freeze,
            wait=wait,
            export=export,
            objective=objective,
            window=window,
            windows=windows,
            seed=seed,
            time_scale=time_scale,
            block_tokens=block_tokens,
            json_file=json_file,
            plot=plot,
        )
