"""The tasks of a running picker: named, supervised, restarted, and cancelled together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from laar.datalayer.visits import cancel
from laar.faults import Fault
from laar.telemetry.problems import Problems

_LOG = logging.getLogger(__name__)

RESTART_S = 5.0
"""Seconds until a failed task is restarted; long enough to read its log line."""


class Tasks:
    """The tasks of one picker.

    A failed task is restarted, and is a problem until it has run for `RESTART_S`.
    """

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, name: str, part: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Start a task, restarted on failure until it returns."""
        self._tasks.append(asyncio.create_task(self._guard(name, part), name=name))
        return self._tasks[-1]

    async def cancel(self) -> None:
        """Cancel all tasks and wait for them to end."""
        await cancel(self._tasks)

    async def _guard(self, name: str, part: Callable[[], Awaitable[None]]) -> None:
        while True:
            is_sound = asyncio.get_running_loop().call_later(
                RESTART_S, self._problems.report, Fault.TASK, None, name
            )
            try:
                await part()
                return
            except Exception:  # noqa: BLE001 - any task is restarted
                is_sound.cancel()
                _LOG.exception("%s failed; restarting it in %g s", name, RESTART_S)
                self._problems.report(Fault.TASK, "failed", name)
            await asyncio.sleep(RESTART_S)
