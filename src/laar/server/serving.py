"""A picker as a process: signals, and Envoy beside it."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

from laar.errors import LaarError
from laar.server.garbage import collect_at_rest, keep_young
from laar.server.memory import keep_freed
from laar.server.picker import Picker
from laar.server.runner import Runner
from laar.server.tasks import cancel
from laar.settings import Loaded

if TYPE_CHECKING:
    from laar.envoy.process import EnvoyProcess
    from laar.server.workers import Worker

_LOG = logging.getLogger(__name__)


def serve(
    settings: Loaded, *, envoy: EnvoyProcess | None = None, worker: Worker | None = None
) -> None:
    """Run a picker until SIGTERM or SIGINT; SIGHUP reads the settings again. Blocks.

    Args:
        settings: as loaded.
        envoy: a process to run beside the picker. It starts once the picker serves, and it is
            drained before the picker stops.
        worker: its place among several processes; None for one alone.

    Raises:
        LaarError: the picker or Envoy cannot start, or Envoy exited unexpectedly.
    """
    import uvloop

    async def main() -> None:
        with settings.located():
            runner = Runner(settings, worker=worker)
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.stop if envoy is None else stop.set)
        if worker is not None:
            from laar.server.workers import ORPHANED

            loop.add_signal_handler(ORPHANED, runner.stop_undrained)
        loop.add_signal_handler(signal.SIGHUP, runner.reloader.look)
        started = asyncio.Event()
        collecting = asyncio.create_task(_collect(runner.picker, started))
        running = asyncio.create_task(runner.run(started=started))
        try:
            if envoy is not None:
                await _run_envoy(envoy, runner.picker, running, started, stop)
                runner.stop()
            with settings.located():
                await running
        finally:
            await cancel([collecting, running])

    uvloop.run(main())


async def _run_envoy(
    envoy: EnvoyProcess,
    picker: Picker,
    running: asyncio.Task[None],
    started: asyncio.Event,
    stop: asyncio.Event,
) -> None:
    """Keep Envoy running until a stop is requested or the picker ends; then drain it."""
    starting = asyncio.create_task(started.wait())
    await asyncio.wait([starting, running], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        starting.cancel()
        return
    async with envoy:
        _LOG.info("Envoy listens on %s; its log is %s", envoy.listens_on, envoy.log_path)
        ended = asyncio.create_task(envoy.wait())
        stopping = asyncio.create_task(stop.wait())
        logging_on = asyncio.create_task(envoy.keep_log_short())
        try:
            await asyncio.wait([ended, stopping, running], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise LaarError(f"Envoy exited unexpectedly:\n{envoy.log_tail()}")
            await envoy.drain(picker.settings.shutdown.grace_s)
        finally:
            await cancel([ended, stopping, logging_on])


async def _collect(picker: Picker, started: asyncio.Event) -> None:
    await started.wait()
    keep_freed()
    keep_young()
    await collect_at_rest(picker.is_at_rest)
