"""`laar serve`: run the picker."""

from __future__ import annotations

import gc
import resource
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laar.cli.terminal import ConfigFile, LogFormat, log_to_stderr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laar.settings import Loaded


def serve(
    config: ConfigFile = Path("laar.yaml"),
    with_envoy: Annotated[
        bool,
        typer.Option(
            "--with-envoy",
            help="Also run Envoy, with the envoy.yaml in the settings' directory or a rendered "
            "bootstrap. It keeps running while the picker restarts.",
        ),
    ] = False,
    log_format: LogFormat = "text",
    home: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the picker: ext_proc, gRPC health, and the admin port with metrics."""
    gc.disable()  # until `keep_young`; saves a tenth of the startup time, mostly imports
    from laar.settings import load

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the settings are about to be read anyway
    # Usually 1024, because of programs that use select(). Polling takes 4 sockets per endpoint.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # macOS refuses infinity
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    log_to_stderr(log_format)
    supervised = None
    if home is not None:
        import laar.server.runner  # noqa: F401 - the slowest import, before standing by
        from laar.server.supervisor import Home

        supervised = Home(home)
        if not supervised.stand_by():
            return
    loaded = load(config)
    if with_envoy:
        gc.enable()
        _serve_with_envoy(loaded, config, ["--log-format", log_format])
    else:
        from laar.server.runner import serve as run

        run(loaded, home=supervised)


def _serve_with_envoy(loaded: Loaded, config: Path, options: Sequence[str]) -> None:
    """Run a picker and Envoy.

    Raise `LaarError` if a port is taken, or the picker or Envoy could not start.
    """
    import sys

    from laar.cli.beside import bootstrap_beside
    from laar.envoy.process import EnvoyProcess
    from laar.server.ports import ports_in_use
    from laar.server.supervisor import supervise

    if taken := ports_in_use(loaded.settings.listen):
        raise taken[0]
    bootstrap = bootstrap_beside(loaded, config)
    command = [sys.executable, "-m", "laar.cli", "serve", "--config", str(config), *options]
    with tempfile.TemporaryDirectory(prefix="laar-envoy-") as directory:
        supervise(loaded, command, EnvoyProcess(bootstrap, Path(directory)))
