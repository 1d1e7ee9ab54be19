"""The tasks of a running picker: named, supervised, restarted, and cancelled together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from laar.datalayer.visits import cancel
from laar.telemetry.problems import Problems

_LOG = logging.getLogger(__name__)

RESTART_S = 5.0
"""Seconds until a failed task is restarted; long enough to read its log line."""


class Tasks:
    """The tasks of one picker.

    A failed task is reported to `problems` by its name and restarted; the others continue.
    """

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, name: str, part: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Start a task, restarted on failure until it returns."""
        task = asyncio.create_task(self._guard(name, part), name=name)
        self._tasks.append(task)
        return task

    async def cancel(self) -> None:
        """Cancel all tasks and wait for them to end."""
        await cancel(self._tasks)

    async def _guard(self, name: str, part: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await part()
                return
            except Exception:  # noqa: BLE001 - any task is restarted
                _LOG.exception("%s failed; restarting it in %g s", name, RESTART_S)
                self._problems.report(name, "failed; see the log")
            await asyncio.sleep(RESTART_S)
            self._problems.report(name, None)
