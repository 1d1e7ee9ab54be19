"""A file of a running picker's learned state: written whole, off the loop, replaced by a rename."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from laar.server.whole_file import WholeFile
from laar.telemetry.problems import Problems

INTERVAL_S = 60.0
"""Seconds between two saves: a crash loses at most as much."""


class StateFile:
    """Keeps a state on disk.

    Args:
        path: the file; None keeps nothing.
        setting: the setting that names the file.
        what: is lost at the end of the process when it can't be written.
        take: makes the content; called in a thread.
        problems: gets a file that cannot be written, by its setting.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        setting: str,
        what: str,
        take: Callable[[], bytes],
        problems: Problems,
    ) -> None:
        self._file = None if path is None else WholeFile(path)
        self._setting = setting
        self._what = what
        self._take = take
        self._problems = problems

    async def keep_saving(self) -> None:
        """Save every `INTERVAL_S`; end at once where there is no file."""
        while self._file is not None:
            await asyncio.sleep(INTERVAL_S)
            await self.save()

    async def save(self) -> None:
        """Write the state, if there is a file for it; a failure is only reported."""
        if self._file is None:
            return
        try:
            await asyncio.to_thread(self._file.write, self._take)
            self._problems.report(self._setting, None)
        except OSError as fault:
            self._problems.report(
                self._setting,
                f"{self._file.path} can't be written ({fault.strerror}); {self._what} will not "
                "outlive this process",
            )
