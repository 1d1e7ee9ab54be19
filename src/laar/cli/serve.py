"""`laar serve`: run the picker."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laar.cli.terminal import ConfigFile, log_to_stderr, report_errors

if TYPE_CHECKING:
    from laar.envoy import EnvoyProcess
    from laar.settings import Loaded

__all__ = ["serve"]


def serve(
    config: ConfigFile = Path("laar.yaml"),
    with_envoy: Annotated[
        bool,
        typer.Option(
            "--with-envoy",
            help="Run Envoy beside the picker: envoy.yaml beside the settings, or a rendered one.",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log debug messages too.")
    ] = False,
) -> None:
    """Run the picker: ext_proc, gRPC health, and the admin port with metrics."""
    # gRPC's newer poller hands each event through more threads; the older one saves a tenth of
    # the picker's CPU (`python -m bench picker`). Versions without the choice ignore this.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")
    with report_errors():
        from laar.server.serving import serve as run
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
