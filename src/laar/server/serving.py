"""Run a picker as a process."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from laar.datalayer.visits import cancel
from laar.server.memory import collect_at_rest, keep_freed, keep_young
from laar.server.picker import Picker
from laar.server.runner import Runner
from laar.settings import Loaded

if TYPE_CHECKING:
    from laar.server.workers import Worker


def serve(settings: Loaded, *, worker: Worker | None = None) -> None:
    """Run a picker until SIGTERM or SIGINT, then exit the process; SIGHUP rereads the settings.

    Args:
        settings: the loaded settings.
        worker: this process among several; None means a single process.

    Raises:
        LaarError: the picker cannot start.
    """
    import uvloop

    async def main() -> None:
        with settings.located():
            runner = Runner(settings, worker=worker)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.stop)
        if worker is not None:
            from laar.server.workers import ORPHANED

            loop.add_signal_handler(ORPHANED, runner.stop_undrained)
        loop.add_signal_handler(signal.SIGHUP, runner.reloader.look)
        started = asyncio.Event()
        collecting = asyncio.create_task(_collect(runner.picker, started))
        running = asyncio.create_task(runner.run(started=started))
        try:
            with settings.located():
                await running
        finally:
            await cancel([collecting, running])
        os._exit(0)  # not waiting for threads, which a name server may block for a minute

    uvloop.run(main())


async def _collect(picker: Picker, started: asyncio.Event) -> None:
    await started.wait()
    keep_freed()
    keep_young()
    await collect_at_rest(picker.is_at_rest)
