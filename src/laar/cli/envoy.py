"""`laar envoy`: render an Envoy bootstrap."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import report_errors

__all__ = ["envoy"]


class _Shape(StrEnum):
    SIDECAR = "sidecar"
    STANDALONE = "standalone"
    GATEWAY = "gateway"


def envoy(
    shape: Annotated[_Shape, typer.Option(help="How Envoy is deployed.")],
    picker: Annotated[str, typer.Option(help="host:port of the picker.")] = "127.0.0.1:9002",
    picker_ca: Annotated[
        Path | None, typer.Option(help="CA of the picker's certificate; default plain HTTP/2.")
    ] = None,
    listen_port: Annotated[int, typer.Option(help="Port for requests.")] = 8080,
    ready_port: Annotated[int, typer.Option(help="Port for /ready and /stats/prometheus.")] = 19001,
    admin_port: Annotated[int, typer.Option(help="Envoy's admin port, on loopback.")] = 19000,
    eds_file: Annotated[
        Path, typer.Option(help="Endpoints file that `laar serve` writes (envoy.eds_file).")
    ] = Path("/run/laar/envoy/endpoints.json"),
    fail_open: Annotated[
        bool, typer.Option(help="Let Envoy choose while no picker answers, rather than answer 503.")
    ] = True,
    max_body_bytes: Annotated[
        int, typer.Option(help="Longest request body; bodies.max_body_bytes of the picker.")
    ] = 32 << 20,
    retries: Annotated[
        int, typer.Option(help="Retries of a request that failed before its answer began.")
    ] = 2,
    longest_hold: Annotated[
        float, typer.Option(help="Longest hold in seconds; at least flow.max_hold_s of the picker.")
    ] = 60.0,
    request_timeout: Annotated[float, typer.Option(help="Seconds for a whole exchange.")] = 3600.0,
    idle_timeout: Annotated[
        float,
        typer.Option(help="Longest silence in an exchange, in seconds."),
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
        bool, typer.Option("--validate", help="Check the result with a real Envoy.")
    ] = False,
) -> None:
    """Print an Envoy bootstrap for a way of running laar."""
    with report_errors():
        from laar.envoy import BootstrapOptions, render, to_yaml, validate

        if picker_ca is not None and not picker_ca.is_file():
            typer.echo(
                f"laar: warning: --picker-ca {picker_ca} is no file here; Envoy needs it at "
                f"{picker_ca.absolute()} where it runs",
                err=True,
            )
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
