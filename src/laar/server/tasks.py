"""The tasks of a running picker: named, guarded, started again, and cancelled together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from laar.telemetry.problems import Problems

_LOG = logging.getLogger(__name__)

RESTART_S = 5.0
"""Seconds until a part that failed is started again; long enough to read its log line."""
_AGAIN_S = 3.0
"""Longer than the clean-up of any task."""


class Tasks:
    """The parts of one picker.

    A part that fails takes no other along, is reported, and is started again.

    Args:
        problems: gets the parts that failed, by name.
        restart_s: seconds until a part that failed is started again.
    """

    def __init__(self, problems: Problems, *, restart_s: float = RESTART_S) -> None:
        self._problems = problems
        self._restart_s = restart_s
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, name: str, part: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Start a part; it runs until it returns or is cancelled."""
        task = asyncio.create_task(self._guard(name, part), name=name)
        self._tasks.append(task)
        return task

    async def cancel(self) -> None:
        """Cancel all parts and wait for their end."""
        await cancel(self._tasks)

    async def _guard(self, name: str, part: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await part()
                return
            except Exception:  # noqa: BLE001 - the guard of a task
                _LOG.exception("%s failed; it starts again in %g s", name, self._restart_s)
                self._problems.report(name, "stopped by a fault; see the log")
            await asyncio.sleep(self._restart_s)
            self._problems.report(name, None)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end. Their errors are dropped; it may be cancelled, too.

    A task that goes on is cancelled again: `asyncio.wait_for` of Python 3.11, which libraries use,
    drops a cancellation that comes with the end of its wait.
    """
    tasks = list(tasks)
    going: Iterable[asyncio.Task[Any]] = tasks
    while going:
        for task in going:
            task.cancel()
        _, going = await asyncio.wait(going, timeout=_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # takes the errors
