"""`laar envoy`: render an Envoy bootstrap."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import report_errors


class _Shape(StrEnum):
    SIDECAR = "sidecar"
    STANDALONE = "standalone"
    GATEWAY = "gateway"


def envoy(
    shape: Annotated[_Shape, typer.Option(help="How Envoy is deployed.")],
    picker: Annotated[str, typer.Option(help="host:port of the picker.")] = "127.0.0.1:9002",
    picker_ca: Annotated[
        Path | None,
        typer.Option(
            help="PEM file with the CA of the picker's certificate. Default: plain HTTP/2, no TLS."
        ),
    ] = None,
    picker_certificate: Annotated[
        Path | None,
        typer.Option(
            help="PEM file with Envoy's client certificate, for the picker's "
            "listen.tls.client_ca. Envoy reads it at startup."
        ),
    ] = None,
    picker_key: Annotated[
        Path | None, typer.Option(help="PEM file with the key of --picker-certificate.")
    ] = None,
    listen_port: Annotated[int, typer.Option(help="Port on which Envoy accepts requests.")] = 8080,
    ready_port: Annotated[int, typer.Option(help="Port for /ready and /stats/prometheus.")] = 19001,
    admin_port: Annotated[int, typer.Option(help="Envoy's admin port, on loopback.")] = 19000,
    eds_file: Annotated[
        Path, typer.Option(help="Endpoints file that `laar serve` writes (envoy.eds_file).")
    ] = Path("/run/laar/envoy/endpoints.json"),
    endpoint_ca: Annotated[
        list[str] | None,
        typer.Option(
            help="PEM file with the CAs of https endpoints (their ca_file), or `system`; "
            "repeatable."
        ),
    ] = None,
    fail_open: Annotated[
        bool, typer.Option(help="Let Envoy choose if no picker answers, instead of answering 503.")
    ] = True,
    max_body_bytes: Annotated[
        int,
        typer.Option(
            help="Longest request body, in bytes; use the picker's bodies.max_body_bytes."
        ),
    ] = 32 << 20,
    retries: Annotated[
        int, typer.Option(help="Envoy's retries of a request that failed before its answer began.")
    ] = 2,
    longest_hold: Annotated[
        float,
        typer.Option(
            help="Seconds that the picker may hold a request; at least its flow.max_hold_s."
        ),
    ] = 60.0,
    request_timeout: Annotated[
        float, typer.Option(help="Timeout of a request including its whole answer, in seconds.")
    ] = 3600.0,
    idle_timeout: Annotated[
        float,
        typer.Option(help="Seconds without any data after which Envoy ends a request."),
    ] = 1800.0,
    tenant_header: Annotated[
        str,
        typer.Option(help="Header that names the tenant; use the picker's flow.tenant_header."),
    ] = "x-gateway-inference-fairness-id",
    trust_gateway_headers: Annotated[
        bool | None,
        typer.Option(
            help="Accept tenant, objective and model headers in requests, for "
            "instance from a gateway in front. Default: only with the shape sidecar."
        ),
    ] = None,
    listen_address: Annotated[
        str | None,
        typer.Option(
            help="IP address to listen on for requests and probes. Default: depends on the shape."
        ),
    ] = None,
    check_with_envoy: Annotated[
        bool, typer.Option("--validate", help="Check the bootstrap with a real Envoy.")
    ] = False,
) -> None:
    """Print an Envoy bootstrap for laar: as a sidecar, standalone, or behind a gateway."""
    with report_errors():
        from laar.core.membership import SYSTEM_CA
        from laar.envoy.bootstrap import render, to_yaml
        from laar.envoy.options import BootstrapOptions
        from laar.envoy.process import validate

        files = {
            "--picker-ca": picker_ca,
            "--picker-certificate": picker_certificate,
            "--picker-key": picker_key,
        }
        for option, path in files.items():
            if path is not None and not path.is_file():
                typer.echo(
                    f"laar: warning: {option} {path} is not a file here; Envoy needs it at "
                    f"{path.absolute()} where it runs",
                    err=True,
                )
        ca, certificate, key = (str(path.absolute()) if path else None for path in files.values())
        bootstrap = render(
            shape.value,
            BootstrapOptions(
                picker=picker,
                picker_ca_path=ca,
                picker_certificate_path=certificate,
                picker_key_path=key,
                listen_port=listen_port,
                ready_port=ready_port,
                admin_port=admin_port,
                eds_path=str(eds_file.absolute()),
                endpoint_cas=tuple(
                    ca if ca == SYSTEM_CA else str(Path(ca).absolute()) for ca in endpoint_ca or ()
                ),
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
