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

from laar.cli.terminal import ConfigFile, log_to_stderr

if TYPE_CHECKING:
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
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            "-w",
            min=1,
            max=64,
            help="Number of processes; use at most one per core. They serve the same ports and "
            "share their state through the store in share.url.",
        ),
    ] = 1,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log debug messages too.")
    ] = False,
    worker_index: Annotated[int, typer.Option(hidden=True)] = -1,
    worker_home: Annotated[Path, typer.Option(hidden=True)] = Path(),
) -> None:
    """Run the picker: ext_proc, gRPC health, and the admin port with metrics."""
    gc.disable()  # until `keep_young`; saves a tenth of the startup time, mostly imports
    from laar.settings import load

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the settings are about to be read anyway
    # Usually 1024, because of programs that use select(). Polling takes 4 sockets per endpoint.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # macOS refuses infinity
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    log_to_stderr(verbose)
    worker = None
    if worker_index >= 0:
        import laar.server.runner  # noqa: F401 - the slowest import, before standing by
        from laar.server.workers import Worker

        worker = Worker(index=worker_index, home=worker_home)
        if not worker.stand_by():
            return
    loaded = load(config)
    if worker is None and (workers > 1 or with_envoy):
        gc.enable()
        _serve_together(loaded, config, workers, with_envoy=with_envoy, verbose=verbose)
    else:
        from laar.server.runner import serve as run

        run(loaded, worker=worker)


def _serve_together(
    loaded: Loaded, config: Path, count: int, *, with_envoy: bool, verbose: bool
) -> None:
    """Run workers, and Envoy if requested.

    Raises:
        LaarError: a setting does not allow several workers, or a worker could not start.
    """
    import sys

    from laar.cli.beside import bootstrap_beside
    from laar.datalayer.endpoints_file import split_address
    from laar.envoy.process import EnvoyProcess
    from laar.errors import SettingError
    from laar.server.ports import ports_in_use
    from laar.server.workers import run_workers

    listen = loaded.settings.listen
    if count > 1 and loaded.settings.share.url is None:
        raise SettingError(
            f"{loaded.at('share.url')}--workers {count} needs it, for example `url: "
            "redis://127.0.0.1:6379/0` for a local Valkey or Redis: workers share state through it"
        )
    last = split_address(listen.admin)[1] + count - 1
    if last > 65535:
        raise SettingError(f"listen.admin: worker {count - 1} would have port {last}, over 65535")
    # Workers would share ports even with another fleet's picker.
    if taken := ports_in_use(listen, count):
        many = f". {count} workers use as many admin ports, starting at listen.admin"
        has_many = count > 1 and taken[0].setting == "listen.admin"
        raise SettingError(f"{taken[0]}{many if has_many else ''}")
    bootstrap = bootstrap_beside(loaded, config) if with_envoy else None
    command = [sys.executable, "-m", "laar.cli", "serve", "--config", str(config)]
    if verbose:
        command.append("--verbose")
    with tempfile.TemporaryDirectory(prefix="laar-envoy-") as directory:
        envoy = EnvoyProcess(bootstrap, Path(directory)) if bootstrap is not None else None
        run_workers(loaded, count, command, envoy)
