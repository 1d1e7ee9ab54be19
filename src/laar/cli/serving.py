"""Run the picker, check its settings, render an Envoy bootstrap for it."""

from __future__ import annotations

import json
import os
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laar.cli.terminal import ConfigFile, log_to_stderr, report_errors

if TYPE_CHECKING:
    from laar.envoy import EnvoyProcess
    from laar.settings import Loaded

__all__ = ["check", "envoy", "serve"]


def serve(
    config: ConfigFile = Path("laar.yaml"),
    with_envoy: Annotated[
        bool,
        typer.Option(
            "--with-envoy",
            help="Run Envoy beside the picker: envoy.yaml beside the settings, or a rendered one.",
        ),
    ] = False,
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
        loaded = load(config)
        if not with_envoy:
            run(loaded)
            return
        with tempfile.TemporaryDirectory(prefix="laar-envoy-") as directory:
            run(loaded, envoy=_envoy_beside(loaded, config, Path(directory)))


def _envoy_beside(loaded: Loaded, config: Path, directory: Path) -> EnvoyProcess:
    """An Envoy for these settings, not started yet.

    Raises:
        SettingError: Envoy would not hear of the endpoints, or it is not installed.
    """
    from laar.envoy import BootstrapOptions, EnvoyProcess, find_binary, render
    from laar.errors import SettingError

    settings = loaded.settings
    if settings.envoy.eds_file is None:
        raise SettingError(
            f"{config}: --with-envoy needs envoy.eds_file, such as run/endpoints.json"
        )
    find_binary()
    written = config.with_name("envoy.yaml")
    if written.exists():
        import yaml

        return EnvoyProcess(yaml.safe_load(written.read_text("utf-8")), directory)
    bootstrap = render(
        "sidecar",
        BootstrapOptions(
            picker=settings.listen.ext_proc,
            eds_path=str(settings.envoy.eds_file.absolute()),
            max_body_bytes=settings.stream.max_body_bytes,
            longest_hold_s=settings.flow.admission.limits.max_hold_s
            if settings.flow.enabled
            else 0.0,
            tenant_header=settings.stream.tenant_header,
        ),
    )
    return EnvoyProcess(bootstrap, directory)


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
    retries: Annotated[
        int, typer.Option(help="Further attempts after one that failed before its answer began.")
    ] = 2,
    longest_hold: Annotated[
        float, typer.Option(help="Seconds; at least flow.max_hold_s of the picker.")
    ] = 60.0,
    request_timeout: Annotated[float, typer.Option(help="Seconds for a whole exchange.")] = 3600.0,
    idle_timeout: Annotated[
        float,
        typer.Option(help="Seconds of silence in an exchange, where the picker expects no less."),
    ] = 1800.0,
    tenant_header: Annotated[
        str, typer.Option(help="flow.tenant_header of the picker.")
    ] = "x-gateway-inference-fairness-id",
    trust_gateway_headers: Annotated[
        bool | None,
        typer.Option(
            help="Let clients set tenant, objective and model headers, as a gateway in front may "
            "for them; by default only a sidecar's client."
        ),
    ] = None,
    listen_address: Annotated[
        str | None,
        typer.Option(help="IP address that requests and probes come in at; else the shape's."),
    ] = None,
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
                retries=retries,
                request_timeout_s=request_timeout,
                idle_timeout_s=idle_timeout,
                tenant_header=tenant_header,
                trust_gateway_headers=trust_gateway_headers,
                listen_host=listen_address,
            ),
        )
        if check_with_envoy:
            validate(bootstrap)
        typer.echo(to_yaml(bootstrap), nl=False)
