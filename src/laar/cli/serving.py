"""Run the picker, check its settings, render an Envoy bootstrap for it."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import ConfigFile, log_to_stderr, report_errors

__all__ = ["check", "envoy", "serve"]


def serve(
    config: ConfigFile = Path("laar.yaml"),
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Run the picker: ext_proc, gRPC health, and the admin port with metrics."""
    # gRPC's newer poller hands each event through more threads; the older one saves a tenth of
    # the picker's CPU (`python -m bench picker`). Versions without the choice ignore this.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")
    with report_errors():
        from laar.server.runner import serve as run
        from laar.settings import load

        log_to_stderr(verbose)
        run(load(config))


def check(
    config: ConfigFile = Path("laar.yaml"),
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the settings' JSON schema, for editors.")
    ] = False,
) -> None:
    """Validate the settings and everything they name; print every fault, or what is in effect.

    Behind each setting stands where it came from: file and line, or `default`.
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


class _Shape(StrEnum):
    SIDECAR = "sidecar"
    STANDALONE = "standalone"
    GATEWAY = "gateway"


def envoy(
    shape: Annotated[_Shape, typer.Option(help="Where Envoy stands.")],
    picker: Annotated[str, typer.Option(help="host:port of the picker.")] = "127.0.0.1:9002",
    picker_ca: Annotated[
        Path | None, typer.Option(help="CA of the picker's certificate; without it plain HTTP/2.")
    ] = None,
    listen_port: Annotated[int, typer.Option(help="Where requests come in.")] = 8080,
    ready_port: Annotated[int, typer.Option(help="/ready and /stats/prometheus.")] = 19001,
    admin_port: Annotated[int, typer.Option(help="Envoy's admin port, on loopback.")] = 19000,
    eds_file: Annotated[
        Path, typer.Option(help="Endpoints file that `laar serve` writes (envoy.eds_file).")
    ] = Path("/run/laar/envoy/endpoints.json"),
    fail_open: Annotated[
        bool, typer.Option(help="Without a picker, let Envoy choose; else answer 503.")
    ] = True,
    max_body_bytes: Annotated[
        int, typer.Option(help="Longest request body; bodies.max_body_bytes of the picker.")
    ] = 32 << 20,
    longest_hold: Annotated[
        float, typer.Option(help="Seconds; at least flow.max_hold_s of the picker.")
    ] = 60.0,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds for a whole exchange, and of silence in it.")
    ] = 3600.0,
    tenant_header: Annotated[
        str, typer.Option(help="flow.tenant_header of the picker.")
    ] = "x-gateway-inference-fairness-id",
    check_with_envoy: Annotated[
        bool, typer.Option("--validate", help="Have a real Envoy check the result.")
    ] = False,
) -> None:
    """Print an Envoy bootstrap for a way of running laar."""
    with report_errors():
        from laar.envoy import BootstrapOptions, render, to_yaml, validate

        bootstrap = render(
            shape.value,
            BootstrapOptions(
                picker=picker,
                picker_ca_path=str(picker_ca.absolute()) if picker_ca else None,
                listen_port=listen_port,
                ready_port=ready_port,
                admin_port=admin_port,
                eds_path=str(eds_file.absolute()),
                fail_open=fail_open,
                max_body_bytes=max_body_bytes,
                longest_hold_s=longest_hold,
                request_timeout_s=request_timeout,
                tenant_header=tenant_header,
            ),
        )
        if check_with_envoy:
            validate(bootstrap)
        typer.echo(to_yaml(bootstrap), nl=False)
