"""The `laar` command.

Each command imports what it needs when it is called: `laar --help` must not load an Envoy's worth
of message types, and serving must not load scikit-learn.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from laar.context_commands import app as context
from laar.errors import LaarError
from laar.lab.commands import app as lab

__all__ = ["app"]

app = typer.Typer(
    help="Sends each LLM request to the endpoint where a correct answer is expected soonest.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.add_typer(lab, name="lab")
app.add_typer(context, name="context")

ConfigFile = Annotated[
    Path, typer.Option("--config", "-c", help="Settings file.", show_default=True)
]


class _Language(StrEnum):
    EN = "en"
    JA = "ja"
    ZH = "zh"


Languages = Annotated[
    list[_Language] | None,
    typer.Option("--language", help="Of the look-ups; repeatable. All of them."),
]
Lengths = Annotated[
    list[int] | None,
    typer.Option(
        "--length", help="Of the look-ups, in tokens; repeatable. The paper's five.", min=256
    ),
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures there.")]

MIN_TABLE_WIDTH = 125  # a narrow terminal wraps lines; a cut number is worse
FAULT = 2
"""Exit status for anything a person has to put right."""


@contextmanager
def _faults_told() -> Iterator[None]:
    """Turns errors meant for people into their text and exit status 2."""
    try:
        yield
    except LaarError as error:
        typer.echo(f"laar: {error}", err=True)
        raise typer.Exit(FAULT) from None


def _log_to_stderr(verbose: bool) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)


@app.callback(invoke_without_command=True)
def main(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Sends each LLM request to the endpoint where a correct answer is expected soonest."""
    if show_version:
        typer.echo(f"laar {version('laar')}")
        raise typer.Exit


@app.command()
def serve(
    config: ConfigFile = Path("laar.yaml"),
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Run the picker: ext_proc, gRPC health, and the admin port with metrics."""
    with _faults_told():
        from laar.config import load_settings
        from laar.server.runner import serve as run

        _log_to_stderr(verbose)
        run(load_settings(config))


@app.command()
def check(
    config: ConfigFile = Path("laar.yaml"),
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the settings' JSON schema, for editors.")
    ] = False,
) -> None:
    """Validate the settings and everything they name; print every fault, or what is in effect."""
    with _faults_told():
        import yaml

        from laar.config import Settings, load_settings
        from laar.core.beliefs import read_capability
        from laar.datalayer import load_endpoints
        from laar.server.outcomes import read_token
        from laar.server.tls import check_tls

        if schema:
            typer.echo(json.dumps(Settings.model_json_schema(), indent=2))
            return
        settings = load_settings(config)
        if settings.endpoints_file is not None:
            load_endpoints(settings.endpoints_file)
        if settings.accuracy.capability is not None:
            read_capability(settings.accuracy.capability)
        read_token(settings.accuracy.outcomes_token_file)
        if settings.listen.tls is not None:
            check_tls(settings.listen.tls)
        typer.echo(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), nl=False)


class _Shape(StrEnum):
    SIDECAR = "sidecar"
    STANDALONE = "standalone"
    GATEWAY = "gateway"


@app.command()
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
    with _faults_told():
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


@app.command()
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
    with _faults_told():
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


@app.command()
def envoy(
    shape: Annotated[_Shape, typer.Option(help="Where Envoy stands.")],
    picker: Annotated[str, typer.Option(help="host:port of the picker.")] = "127.0.0.1:9002",
    listen_port: Annotated[int, typer.Option(help="Where requests come in.")] = 8080,
    eds_file: Annotated[
        Path, typer.Option(help="Endpoints file that `laar serve` writes (envoy.eds_file).")
    ] = Path("/run/laar/envoy/endpoints.json"),
    fail_open: Annotated[
        bool, typer.Option(help="Without a picker, let Envoy choose; else answer 503.")
    ] = True,
    check_with_envoy: Annotated[
        bool, typer.Option("--validate", help="Have a real Envoy check the result.")
    ] = False,
) -> None:
    """Print an Envoy bootstrap for a way of running laar."""
    with _faults_told():
        from laar.envoy import BootstrapOptions, render, to_yaml, validate

        bootstrap = render(
            shape.value,
            BootstrapOptions(
                picker=picker,
                listen_port=listen_port,
                eds_path=str(eds_file.absolute()),
                fail_open=fail_open,
            ),
        )
        if check_with_envoy:
            validate(bootstrap)
        typer.echo(to_yaml(bootstrap), nl=False)


@app.command("sim-endpoint")
def sim_endpoint(
    port: Annotated[int, typer.Option(help="Port; 0 for a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    model: Annotated[str, typer.Option(help="The model's name.")] = "",
    served_name: Annotated[
        list[str] | None, typer.Option(help="A name clients may ask for; may be repeated.")
    ] = None,
    profile: Annotated[
        str, typer.Option(help="Model and hardware the engine imitates.")
    ] = "qwen2.5-7b-a100",
    fleet_model: Annotated[
        str | None, typer.Option(help="A model of the fleet file: its speed and its accuracy.")
    ] = None,
    fleet: Annotated[
        Path | None, typer.Option(help="Fleet file; the one that comes with laar by default.")
    ] = None,
    time_scale: Annotated[
        float, typer.Option(help="Real seconds for a simulated one; 0.05 is twenty times faster.")
    ] = 1.0,
    fault: Annotated[
        list[str] | None, typer.Option(help="kind:value@share, such as 503:2@0.1; repeatable.")
    ] = None,
    fault_header: Annotated[
        bool, typer.Option(help="Honour the x-sim-fault request header.")
    ] = False,
    kv_events: Annotated[
        str | None, typer.Option(help="ZMQ address to publish KV events on.")
    ] = None,
) -> None:
    """Run one simulated vLLM endpoint."""
    with _faults_told():
        from laar.lab.endpoint import EndpointSettings, KvEventSettings, parse_fault, run

        run(
            EndpointSettings(
                model=model or fleet_model or profile,
                served_names=tuple(served_name or ()),
                host=host,
                port=port,
                profile=profile,
                fleet_model=fleet_model,
                fleet=fleet,
                time_scale=time_scale,
                faults=tuple(parse_fault(text) for text in fault or ()),
                allow_fault_header=fault_header,
                kv_events=KvEventSettings(endpoint=kv_events) if kv_events else None,
            )
        )


@app.command()
def up(
    requests: Annotated[
        int | None,
        typer.Option(help="Verified questions per policy; without it everything stays up."),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Questions under way at once.")] = 8,
    time_scale: Annotated[
        float, typer.Option(help="Real seconds for a simulated one; 0.05 is twenty times faster.")
    ] = 0.05,
    port: Annotated[int, typer.Option(help="Envoy's port; 0 for a free one.")] = 8080,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the table there.")] = None,
) -> None:
    """Run everything on this machine: simulated endpoints, the picker, and a real Envoy."""
    with _faults_told():
        from laar.demo.up import run_up

        raise typer.Exit(
            run_up(
                requests=requests,
                concurrency=concurrency,
                time_scale=time_scale,
                port=port,
                json_file=json_file,
            )
        )


@app.command()
def measure(
    endpoint: Annotated[list[str], typer.Option(help="Base URL of an endpoint; repeatable.")],
    out: Annotated[Path, typer.Option(help="File of outcomes; an earlier run's is gone on with.")],
    task: Annotated[
        str, typer.Option(help="kv-lookup, or a JSONL file of questions with checks.")
    ] = "kv-lookup",
    model: Annotated[
        list[str] | None, typer.Option(help="Only this model; repeatable. All that are served.")
    ] = None,
    per_cell: Annotated[
        int, typer.Option(help="Look-ups for each language and length.", min=1)
    ] = 50,
    language: Languages = None,
    length: Lengths = None,
    seed: Annotated[int, typer.Option(help="Of the look-ups.")] = 0,
    concurrency: Annotated[
        int, typer.Option(help="Requests under way at each endpoint; 1 shows no queue.", min=1)
    ] = 1,
    rate: Annotated[
        float | None, typer.Option(help="Most requests started a second.", min=0.001)
    ] = None,
    stream: Annotated[
        bool, typer.Option(help="Ask for streams, which tell the time to first token.")
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.", min=0.1)] = 600.0,
    check_timeout: Annotated[float, typer.Option(help="Seconds for one check.", min=0.1)] = 5.0,
    max_tokens: Annotated[int | None, typer.Option(help="Of an answer.", min=1)] = None,
    key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the API key.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Put every question to every model and write down what came of it; resumable."""
    with _faults_told():
        from laar.demo.measure import questions_of, run_measure
        from laar.lab.workloads.kv_lookup import LANGUAGES, LENGTHS_TOKENS

        questions = questions_of(
            task,
            languages=language or LANGUAGES,
            lengths_tokens=length or LENGTHS_TOKENS,
            per_cell=per_cell,
            seed=seed,
        )
        raise typer.Exit(
            run_measure(
                endpoints=endpoint,
                models=model or (),
                questions=questions,
                out=out,
                concurrency=concurrency,
                rate_per_s=rate,
                stream=stream,
                timeout_s=timeout,
                check_timeout_s=check_timeout,
                max_tokens=max_tokens,
                key_variable=key_env,
                json_file=json_file,
            )
        )


@app.command()
def fit(
    outcomes: Annotated[Path, typer.Argument(help="File of `laar measure`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The artifact.")] = Path(
        "capability.json"
    ),
    report: Annotated[
        Path | None, typer.Option(help="Directory for a page that says how far to trust it.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Learn from outcomes what each model can do, and how far that can be trusted."""
    with _faults_told():
        from laar.client.fitting import run_fit

        run_fit(outcomes, out=out, report=report, json_file=json_file)


@app.command()
def ttca(
    url: Annotated[
        str | None, typer.Option(help="Of a gateway; without it the demo's fleet is started.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; the first is compared with the others."),
    ] = None,
    per_cell: Annotated[
        int, typer.Option(help="Held-out look-ups for each language and length.", min=1)
    ] = 10,
    language: Languages = None,
    length: Lengths = None,
    seed: Annotated[int, typer.Option(help="Of the look-ups.")] = 0,
    concurrency: Annotated[int, typer.Option(help="Questions under way at once.", min=1)] = 8,
    time_scale: Annotated[
        float, typer.Option(help="Of the fleet started: real seconds for a simulated one.")
    ] = 0.05,
    capability: Annotated[
        Path | None, typer.Option(help="Artifact for the fleet started; its own by default.")
    ] = None,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures there; .svg, .png.")] = None,
) -> None:
    """Replay held-out questions with retries: time to correct answer, by policy."""
    with _faults_told():
        from laar.demo.ttca import run_ttca
        from laar.lab.workloads.kv_lookup import LANGUAGES, LENGTHS_TOKENS

        raise typer.Exit(
            run_ttca(
                url=url,
                policies=policy or ("laar", "laar-paper", "load-aware", "session-affinity"),
                per_cell=per_cell,
                languages=language or LANGUAGES,
                lengths_tokens=length or LENGTHS_TOKENS,
                seed=seed,
                concurrency=concurrency,
                time_scale=time_scale,
                capability=capability,
                json_file=json_file,
                plot_file=plot,
            )
        )


if __name__ == "__main__":
    app()
